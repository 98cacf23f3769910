/* The clock: the current time, sleeps and yields. Only base/sync.c also uses time.
 *
 * Times are seconds on the monotonic clock, like Python's time.monotonic(), so times in the core's
 * log lines can be compared with times that a script measures. Any thread. */
#ifndef HVDLITE_BASE_CLOCK_H
#define HVDLITE_BASE_CLOCK_H

#include <time.h>

/* Converts seconds to a timespec for system calls, limited to the range from 0 to one day. A caller
 * that must sleep for more than a day calls again. */
static inline struct timespec clock_span(double seconds) {
    static const double A_DAY = 86400;
    /* NaN becomes one day */
    double most = seconds < A_DAY ? seconds : A_DAY, span = most > 0 ? most : 0;
    struct timespec t = {.tv_sec = (time_t)span};
    t.tv_nsec = (long)((span - (double)t.tv_sec) * 1e9);
    return t;
}

double clock_now(void);
void clock_nap(double seconds);
void clock_yield(void);
void clock_relax(void); /* a spinning thread calls this between two checks */

#endif
