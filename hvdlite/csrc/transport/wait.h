/* The wait policy: spin for some tens of microseconds, then yield, then nap for longer and longer.
 *
 * A spinning thread takes its core from training. So a rank spins only if every rank of the host
 * has its own core. Naps grow with the time waited: after a long wait, a little more delay does not
 * matter. A struct waiter serves one wait, or similar waits one after another, of one thread. */
#ifndef HVDLITE_TRANSPORT_WAIT_H
#define HVDLITE_TRANSPORT_WAIT_H

#include "base/error.h"

#include <stdatomic.h>

/* Shared by all waits of a process. Set after a yield that let another program use the core. */
struct crowd {
    _Atomic double until; /* until this time, other threads are assumed to compute on the cores */
};

/* `spin`, `yield`: seconds since a wait began. The wait spins until `spin`, yields until `yield`,
 * then naps. While the cores are crowded, the wait naps instead of yielding. */
struct wait_policy {
    double spin, yield;
    struct crowd *crowd; /* NULL: never assume that the cores are crowded */
};

/* How a transport waits, and when it gives up. */
struct patience {
    struct wait_policy policy;
    double timeout; /* seconds without progress until a wait fails; 0: never */
    /* called during waits; if it fails, the wait fails; NULL: nothing is called */
    int (*meanwhile)(void *arg, hvd_error *err);
    void *arg;
};

struct waiter {
    double since; /* time of the first unsuccessful check; 0: none yet */
    double usual; /* seconds that this waiter's last wait took; 0: none yet */
    double now;   /* time of the last check */
    struct wait_policy policy;
};

/* Call it after an unsuccessful check. Returns 0: check again immediately; < 0: yield; > 0: nap for
 * that many seconds. */
double waiter_next(struct waiter *w, double now, struct wait_policy policy, double longest_nap);

/* Records that the wait has ended, so that the waiter can serve the next wait. */
void waiter_done(struct waiter *w, double now);

/* Spins, yields or naps as waiter_next's result says. */
void waiter_do(struct waiter *w, double next);

bool wait_is_crowded(struct wait_policy policy, double now);

/* Returns whether this process may use enough cores for all ranks of the host. A rank bound to one
 * core never spins, because training uses the same core. */
bool wait_may_spin(int local_size);

#endif
