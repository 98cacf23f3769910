/* A bell: how a rank that sleeps is woken, also by another process of its host.
 *
 * Layer 2. The one door to futexes: MPI can only be polled, but a word of shared memory can be slept
 * on. A zeroed struct is a bell; it has one sleeper, and any thread of any process may ring it. */
#ifndef HVDLITE_BELL_H
#define HVDLITE_BELL_H

#include <stdatomic.h>

/* A cache line each: ringing one does not disturb its neighbours. */
struct bell {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep;
};

void bell_ring(struct bell *bell);
/* Take a ticket, look for work, sleep on the ticket: a ring in between ends the sleep at once. */
unsigned bell_listen(struct bell *bell);
void bell_sleep(struct bell *bell, unsigned ticket, double seconds);

#endif
