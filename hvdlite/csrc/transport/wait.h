/* The wait policy: spin for some tens of microseconds, then yield, then nap ever longer.
 *
 * A spinning thread takes its core from training. So a rank spins only if every rank of the host
 * has a core of its own. Naps grow with the time waited, because a long wait may end a little
 * late. A struct waiter serves one wait, or a series of similar waits; one thread. */
#ifndef HVDLITE_TRANSPORT_WAIT_H
#define HVDLITE_TRANSPORT_WAIT_H

#include "base/error.h"

#include <stdatomic.h>

/* All waits of a process share this. A yield that has taken longer than `yield` below sets the
 * time. */
struct crowd {
    _Atomic double until; /* until this time computing threads are taken to use the cores */
};

/* Seconds of one wait: spins until `spin`, then yields until `yield`, then naps. While the cores
 * are crowded, a wait naps instead of yielding. */
struct wait_policy {
    double spin, yield;
    struct crowd *crowd; /* NULL: the cores never count as crowded */
};

/* How a transport waits, and when it gives up. */
struct patience {
    struct wait_policy policy;
    double timeout; /* seconds without progress until a wait fails; 0: never */
    /* called during waits; its error ends the wait; NULL: nothing */
    int (*meanwhile)(void *arg, hvd_error *err);
    void *arg;
};

struct waiter {
    double since; /* time of the first check without success; 0: none yet */
    double usual; /* seconds of the last wait of the stream; 0: none yet */
    double now;   /* time of the last check */
    struct wait_policy policy;
};

/* What to do after a check without success. 0: check again at once; < 0: yield; > 0: nap so many
 * seconds. */
double waiter_next(struct waiter *w, double now, struct wait_policy policy, double longest_nap);

/* The wait has ended; the next one of the stream begins. */
void waiter_done(struct waiter *w, double now);

/* Does what waiter_next returned. */
void waiter_do(struct waiter *w, double next);

bool wait_is_crowded(struct wait_policy policy, double now);

/* True: this process may use enough cores for all ranks of the host. A rank that is bound to one
 * core never spins, because its training shares that core. */
bool wait_may_spin(int local_size);

#endif
