#define _GNU_SOURCE /* sched_getaffinity */
#include "transport/wait.h"

#include "base/clock.h"

#include <sched.h>
#include <unistd.h>

static const double SHORTEST_NAP = 50e-6;
/* in waits longer than this a nap costs less than spinning or yielding */
static const double LONG_WAIT = 100e-6;

/* An eighth of the wait so far, so the end of the wait is noticed late by at most an eighth. */
static double nap_of(double wait, double longest_nap) {
    double nap = wait / 8 > SHORTEST_NAP ? wait / 8 : SHORTEST_NAP;
    return nap < longest_nap ? nap : longest_nap;
}

double waiter_next(struct waiter *w, double now, struct wait_policy policy, double longest_nap) {
    if (w->since <= 0) w->since = now;
    double waited = now - w->since;
    if (w->usual > LONG_WAIT) return nap_of(waited > w->usual ? waited : w->usual, longest_nap);
    if (waited < policy.spin) return 0;
    if (waited < policy.yield) return -1;
    return nap_of(waited, longest_nap);
}

void waiter_done(struct waiter *w, double now) {
    if (w->since > 0) w->usual = now - w->since;
    w->since = 0;
}

void waiter_do(double next) {
    if (next < 0)
        clock_yield();
    else if (next > 0)
        clock_nap(next);
}

bool wait_may_spin(int local_size) {
    cpu_set_t own;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof own, &own) == 0) cores = CPU_COUNT(&own);
    return cores >= local_size && cores > 1;
}
