/* A doorbell: wakes a sleeping rank, also from another process of its host.
 *
 * Only doorbell.c uses futexes: a thread sleeps on a word of shared memory. A zeroed doorbell is
 * ready. One thread sleeps on it; any thread of any process rings. */
#ifndef HVDLITE_SHM_DOORBELL_H
#define HVDLITE_SHM_DOORBELL_H

#include <stdatomic.h>

/* On a cache line of its own, so that ringing does not slow its neighbours. */
struct doorbell {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep; /* 0: nobody sleeps */
};

void doorbell_ring(struct doorbell *doorbell);
/* Take a ticket, look for work, sleep on the ticket: a ring in between ends the sleep at once. */
unsigned doorbell_listen(struct doorbell *doorbell);
void doorbell_sleep(struct doorbell *doorbell, unsigned ticket, double seconds);

/* Several threads may sleep on one word. A thread sleeps while the word has this value, until
 * another thread wakes all sleepers; a sleep may also end without a reason. */
void doorbell_sleep_while(atomic_uint *word, unsigned value);
void doorbell_wake_all(atomic_uint *word);

#endif
