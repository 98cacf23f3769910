/* A doorbell: wakes a sleeping rank, also from another process of its host.
 *
 * The one door to futexes: MPI can only be polled, but a thread can sleep on a word of shared
 * memory. Zeroed, it is ready. One thread sleeps on it, any thread of any process rings. */
#ifndef HVDLITE_SHM_DOORBELL_H
#define HVDLITE_SHM_DOORBELL_H

#include <stdatomic.h>

/* On a cache line of its own: ringing it does not slow its neighbours. */
struct doorbell {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep; /* 0: nobody sleeps */
};

void doorbell_ring(struct doorbell *doorbell);
/* Take a ticket, look for work, sleep on the ticket: a ring in between ends the sleep at once. */
unsigned doorbell_listen(struct doorbell *doorbell);
void doorbell_sleep(struct doorbell *doorbell, unsigned ticket, double seconds);

#endif
