/* The waiting policy: spin some tens of microseconds, then yield, then nap longer and longer.
 *
 * A spinning thread steals from training, so it spins only when every rank of the host has
 * a core of its own, and naps grow with the time already waited: what was waited for long may be
 * noticed a little late. One `struct waiter` a wait; one thread. */
#ifndef HVDLITE_TRANSPORT_WAIT_H
#define HVDLITE_TRANSPORT_WAIT_H

#include <stdbool.h>

/* How long, in seconds of one wait, to spin, and until when to yield; naps come after that. */
struct wait_policy {
    double spin, yield;
};

struct waiter {
    double since; /* when nothing happened for the first time; 0: not yet */
};

/* What to do next, after a look that found nothing. 0: look again at once; < 0: yield; else nap. */
double waiter_next(struct waiter *w, double now, struct wait_policy policy, double longest_nap);

/* The same, done. */
void waiter_pause(struct waiter *w, struct wait_policy policy, double longest_nap);

/* The cores that this rank may use are enough for all ranks of this host. A rank that is bound to a
 * single core never spins: its training shares that core. */
bool wait_may_spin(int local_size);

#endif
