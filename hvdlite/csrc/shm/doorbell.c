#define _GNU_SOURCE /* syscall */
#include "shm/doorbell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void futex(atomic_uint *word, int op, unsigned value, const struct timespec *timeout) {
    syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* Sequentially consistent: either the ringer sees `asleep`, or the sleeper sees the ring. Only one
 * ringer wakes the sleeper, which may wait long for a core while others ring. */
void doorbell_ring(struct doorbell *doorbell) {
    atomic_fetch_add(&doorbell->rings, 1);
    if (atomic_load(&doorbell->asleep) && atomic_exchange(&doorbell->asleep, 0))
        futex(&doorbell->rings, FUTEX_WAKE, 1, NULL);
}

unsigned doorbell_listen(struct doorbell *doorbell) { return atomic_load(&doorbell->rings); }

void doorbell_sleep(struct doorbell *doorbell, unsigned ticket, double seconds) {
    struct timespec timeout = {.tv_sec = (time_t)seconds};
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    atomic_store(&doorbell->asleep, 1);
    futex(&doorbell->rings, FUTEX_WAIT, ticket, &timeout); /* only if rings == ticket */
    atomic_store(&doorbell->asleep, 0);
}
