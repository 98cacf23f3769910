#define _POSIX_C_SOURCE 200809L
#include "base/clock.h"

#include <sched.h>

double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clock_nap(double seconds) {
    struct timespec t = clock_span(seconds);
    nanosleep(&t, NULL); /* a signal may end the sleep early; each caller checks the time again */
}

void clock_yield(void) { sched_yield(); }

void clock_relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}
