#define _GNU_SOURCE /* sched_getaffinity */
#include "transport/wait.h"

#include "base/clock.h"

#include <sched.h>
#include <unistd.h>

static const double SHORTEST_NAP = 50e-6;

double waiter_next(struct waiter *w, double now, struct wait_policy policy, double longest_nap) {
    if (w->since <= 0) w->since = now;
    double waited = now - w->since;
    if (waited < policy.spin) return 0;
    if (waited < policy.yield) return -1;
    double nap = waited / 8; /* so it is late by at most an eighth of the wait */
    if (nap < SHORTEST_NAP) nap = SHORTEST_NAP;
    return nap < longest_nap ? nap : longest_nap;
}

void waiter_pause(struct waiter *w, struct wait_policy policy, double longest_nap) {
    double next = waiter_next(w, clock_now(), policy, longest_nap);
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
