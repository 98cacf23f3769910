/* A doorbell: how a rank that sleeps is woken, also by another process of its host.
 *
 * The one door to futexes: MPI can only be polled, but a word of shared memory can be slept
 * on. A zeroed struct is a doorbell; it has one sleeper, and any thread of any process may ring it. */
#ifndef HVDLITE_SHM_DOORBELL_H
#define HVDLITE_SHM_DOORBELL_H

#include <stdatomic.h>

/* A cache line each: ringing one does not disturb its neighbours. */
struct doorbell {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep;
};

void doorbell_ring(struct doorbell *doorbell);
/* Take a ticket, look for work, sleep on the ticket: a ring in between ends the sleep at once. */
unsigned doorbell_listen(struct doorbell *doorbell);
void doorbell_sleep(struct doorbell *doorbell, unsigned ticket, double seconds);

#endif
