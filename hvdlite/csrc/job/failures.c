/* Errors of collectives that a framework raises as exceptions of its own, with nothing but a text.
 * A number at the end of the text leads back to the error. */
#define _POSIX_C_SOURCE 200809L /* for strnlen */
#include "base/os.h"
#include "hvd.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { KEPT = 64 }; /* more than the failures of a program between two looks at them */

/* Global, because frameworks raise errors also after the job's end. */
static struct failures {
    atomic_flag locked; /* for a moment only; a mutex could not be made before the first use */
    uint64_t count;     /* number of the last failure */
    hvd_error last[KEPT];
} failures = {.locked = ATOMIC_FLAG_INIT};

/* Another thread may have held the lock when this process was forked. */
static void unlock_in_child(void) { atomic_flag_clear(&failures.locked); }

static void lock(void) {
    while (atomic_flag_test_and_set(&failures.locked)) clock_yield();
}

void hvd_keep_failure(hvd_error *err) {
    enum { MOST = sizeof " [hvdlite error 18446744073709551615]" };
    lock();
    uint64_t number = ++failures.count;
    failures.last[number % KEPT] = *err;
    atomic_flag_clear(&failures.locked);
    if (number == 1) fork_watch(unlock_in_child, NULL);
    size_t used = strnlen(err->text, sizeof err->text - MOST);
    while (used && (err->text[used] & 0xC0) == 0x80) used--; /* not within a character */
    snprintf(err->text + used, MOST, " [hvdlite error %llu]", (unsigned long long)number);
}

bool hvd_kept_failure(uint64_t number, hvd_error *out) {
    lock();
    bool kept = number && number <= failures.count && failures.count - number < KEPT;
    if (kept) *out = failures.last[number % KEPT];
    atomic_flag_clear(&failures.locked);
    return kept;
}
