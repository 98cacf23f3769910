/* Doorbells: a rank sleeps on a word of shared memory until another rank rings. */
#define _GNU_SOURCE /* syscall */
#include "base/os.h"
#include "shm/window.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

static void futex(atomic_uint *word, int op, unsigned value, const struct timespec *timeout) {
    syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* Returns the value that `asleep` has while a thread sleeps with this ticket; never 0. */
static unsigned sleep_of(unsigned ticket) { return ticket << 1 | 1; }

/* Returns whether the thread with sleep_of(ticket) == sleep must wake up: it took its ticket, the
 * number of rings so far, before ring number `ring` (from 0). */
static bool has_missed(unsigned sleep, unsigned ring) { return (int)(sleep_of(ring) - sleep) >= 0; }

/* The atomics are sequentially consistent, so either the ringing thread sees `asleep` or the
 * sleeping thread sees the ring. If several threads ring during one sleep, only one makes the
 * system call. A ring does not end a sleep that began after the ring. */
void doorbell_ring(struct doorbell *doorbell) {
    unsigned ring = atomic_fetch_add(&doorbell->rings, 1), sleep = atomic_load(&doorbell->asleep);
    if (sleep && has_missed(sleep, ring) &&
        atomic_compare_exchange_strong(&doorbell->asleep, &sleep, 0))
        futex(&doorbell->rings, FUTEX_WAKE, 1, NULL);
}

unsigned doorbell_listen(struct doorbell *doorbell) { return atomic_load(&doorbell->rings); }

void doorbell_sleep(struct doorbell *doorbell, unsigned ticket, double seconds) {
    struct timespec timeout = clock_span(seconds);
    atomic_store(&doorbell->asleep, sleep_of(ticket));
    futex(&doorbell->rings, FUTEX_WAIT, ticket, &timeout); /* sleeps only if rings == ticket */
    atomic_store(&doorbell->asleep, 0);
}

void doorbell_sleep_while(atomic_uint *word, unsigned value) {
    futex(word, FUTEX_WAIT, value, NULL);
}

void doorbell_wake_all(atomic_uint *word) { futex(word, FUTEX_WAKE, INT_MAX, NULL); }
