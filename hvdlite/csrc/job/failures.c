/* Errors of collectives that a framework raises as exceptions of its own, with nothing but a text.
 * A number at the end of the text leads back to the error. */
#define _POSIX_C_SOURCE 200809L /* for strnlen */
#include "hvd.h"
#include "job/context.h"

#include <stdio.h>
#include <string.h>

void hvd_keep_failure(hvd_error *err) {
    enum { MOST = sizeof " [hvdlite error 18446744073709551615]" };
    struct failures *f = context_lock_failures();
    uint64_t number = ++f->count;
    f->last[number % FAILURES_KEPT] = *err;
    context_unlock_failures();
    size_t used = strnlen(err->text, sizeof err->text - MOST);
    while (used && (err->text[used] & 0xC0) == 0x80) used--; /* not within a character */
    snprintf(err->text + used, MOST, " [hvdlite error %llu]", (unsigned long long)number);
}

bool hvd_kept_failure(uint64_t number, hvd_error *out) {
    const struct failures *f = context_lock_failures();
    bool kept = number && number <= f->count && f->count - number < FAILURES_KEPT;
    if (kept) *out = f->last[number % FAILURES_KEPT];
    context_unlock_failures();
    return kept;
}
