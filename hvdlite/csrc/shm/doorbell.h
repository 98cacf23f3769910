/* A doorbell wakes a sleeping rank, even from another process of its host.
 *
 * A sleeping thread waits on a word of shared memory. Only doorbell.c uses futexes. A zeroed
 * doorbell is ready. One thread sleeps on a doorbell; any thread of any process rings it. */
#ifndef HVDLITE_SHM_DOORBELL_H
#define HVDLITE_SHM_DOORBELL_H

#include <stdatomic.h>

/* Fills a cache line, so that ringing does not slow accesses to neighboring data. */
struct doorbell {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep; /* 0: no thread sleeps */
};

void doorbell_ring(struct doorbell *doorbell);
/* Returns a ticket. Take the ticket, look for work, then sleep with the ticket: if the doorbell
 * rings after doorbell_listen, doorbell_sleep returns immediately. */
unsigned doorbell_listen(struct doorbell *doorbell);
void doorbell_sleep(struct doorbell *doorbell, unsigned ticket, double seconds);

/* Several threads may sleep on one word. A thread sleeps while the word has this value, until
 * another thread calls doorbell_wake_all. A sleep may also end early. */
void doorbell_sleep_while(atomic_uint *word, unsigned value);
void doorbell_wake_all(atomic_uint *word);

#endif
