/* The one door to time: now, a nap, a yield.
 *
 * Seconds on the monotonic clock. Python's time.monotonic() reads the same clock, so log lines of
 * the core and timestamps of a script compare. Any thread. */
#ifndef HVDLITE_BASE_CLOCK_H
#define HVDLITE_BASE_CLOCK_H

double clock_now(void);
void clock_nap(double seconds);
void clock_yield(void);
void clock_relax(void); /* between two looks of a thread that spins */

#endif
