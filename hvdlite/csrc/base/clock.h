/* All use of time: now, a nap, a yield.
 *
 * Seconds on the monotonic clock. Python's time.monotonic() reads the same clock, so log lines of
 * the core and timestamps of a script compare. Any thread. */
#ifndef HVDLITE_BASE_CLOCK_H
#define HVDLITE_BASE_CLOCK_H

#include <time.h>

/* A timespec for system calls: at least 0 seconds, at most a day. A caller that sleeps longer
 * than a day calls again. */
static inline struct timespec clock_span(double seconds) {
    static const double A_DAY = 86400;
    double most = seconds < A_DAY ? seconds : A_DAY, span = most > 0 ? most : 0; /* a day for NaN */
    struct timespec t = {.tv_sec = (time_t)span};
    t.tv_nsec = (long)((span - (double)t.tv_sec) * 1e9);
    return t;
}

double clock_now(void);
void clock_nap(double seconds);
void clock_yield(void);
void clock_relax(void); /* a spinning thread calls this between two checks */

#endif
