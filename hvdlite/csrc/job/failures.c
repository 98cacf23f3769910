/* Errors of collectives that a framework raises as exceptions of its own, with nothing but a text.
 * A number at the end of the text leads back to the error. */
#define _POSIX_C_SOURCE 200809L
#include "hvd.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { KEPT = 64 }; /* more than the failures of a program between two looks at them */

/* Global, because frameworks raise errors also after the job's end. */
static struct failures {
    pthread_mutex_t mutex;
    uint64_t count; /* number of the last failure */
    hvd_error last[KEPT];
} failures = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void hvd_keep_failure(hvd_error *err) {
    enum { MOST = sizeof " [hvdlite error 18446744073709551615]" };
    pthread_mutex_lock(&failures.mutex);
    uint64_t number = ++failures.count;
    failures.last[number % KEPT] = *err;
    pthread_mutex_unlock(&failures.mutex);
    size_t used = strnlen(err->text, sizeof err->text - MOST);
    while (used && (err->text[used] & 0xC0) == 0x80) used--; /* not within a character */
    snprintf(err->text + used, MOST, " [hvdlite error %llu]", (unsigned long long)number);
}

bool hvd_kept_failure(uint64_t number, hvd_error *out) {
    pthread_mutex_lock(&failures.mutex);
    bool kept = number && number <= failures.count && failures.count - number < KEPT;
    if (kept) *out = failures.last[number % KEPT];
    pthread_mutex_unlock(&failures.mutex);
    return kept;
}
