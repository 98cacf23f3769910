#define _GNU_SOURCE /* sched_getaffinity */
#include "transport/wait.h"

#include "base/os.h"

#include <sched.h>
#include <unistd.h>

/* Seconds. A shorter nap saves little: Linux adds its timer slack, 50 us by default. */
static const double SHORTEST_NAP = 50e-6;
/* Seconds. In longer waits, a nap costs less than spinning or yielding: if a thread yielded for 0.3
 * ms in each wait for a short segment, the yields would take a quarter of a core. */
static const double LONG_WAIT = 100e-6;
/* Seconds. A yield that takes longer has let another program compute for a time slice, which lasts
 * 1.5 to 4 ms. The other threads of this process and of the other ranks often take 0.3 to 1 ms
 * between two calls, so a shorter limit would make ranks sleep although they are alone. */
static const double SLICE = 1e-3;
/* After a yield that took long, waits sleep for CROWDED times as long. Then they yield again, to
 * test whether other programs still use the cores. So these yields take at most a quarter of the
 * time. With a larger factor, ranks sleep too long after a program that uses a core only now and
 * then, and sleeping ranks are late for each other. */
static const double CROWDED = 3;

/* Returns an eighth of the time waited so far, so a wait lasts at most an eighth too long. */
static double nap_of(double wait, double longest_nap) {
    double nap = wait / 8 > SHORTEST_NAP ? wait / 8 : SHORTEST_NAP;
    return nap < longest_nap ? nap : longest_nap;
}

double waiter_next(struct waiter *w, double now, struct wait_policy policy, double longest_nap) {
    if (w->since <= 0) w->since = now;
    w->now = now;
    w->policy = policy;
    double waited = now - w->since;
    if (w->usual > LONG_WAIT) return nap_of(waited > w->usual ? waited : w->usual, longest_nap);
    if (waited < policy.spin) return 0;
    if (waited < policy.yield && !wait_is_crowded(policy, now)) return -1;
    return nap_of(waited, longest_nap);
}

void waiter_done(struct waiter *w, double now) {
    if (w->since > 0) w->usual = now - w->since;
    w->since = 0;
}

bool wait_is_crowded(struct wait_policy policy, double now) {
    return policy.crowd && now < atomic_load_explicit(&policy.crowd->until, memory_order_relaxed);
}

/* If a yield takes longer than SLICE, a computing thread has used the core. Then waits sleep
 * instead of yielding, because a thread that wakes up from a sleep may interrupt a computing
 * thread, but a thread that has yielded waits until the computing thread's time slice ends. */
static void yield_core(struct waiter *w) {
    clock_yield();
    if (!w->policy.crowd) return;
    double now = clock_now(), taken = now - w->now;
    if (taken > SLICE)
        atomic_store_explicit(&w->policy.crowd->until, now + CROWDED * taken, memory_order_relaxed);
}

void waiter_do(struct waiter *w, double next) {
    if (next < 0)
        yield_core(w);
    else if (next > 0)
        clock_nap(next);
}

bool wait_may_spin(int local_size) {
    cpu_set_t own;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (sched_getaffinity(0, sizeof own, &own) == 0) cores = CPU_COUNT(&own);
    return cores >= local_size && cores > 1;
}
