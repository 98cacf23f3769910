#define _GNU_SOURCE /* syscall */
#include "bell.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static void futex(atomic_uint *word, int op, unsigned value, const struct timespec *timeout) {
    syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* Either the ringer sees `asleep`, or the sleeper sees the ring: all of it sequentially consistent. One
 * wakes it: it may wait long for a core, and others ring meanwhile. */
void bell_ring(struct bell *bell) {
    atomic_fetch_add(&bell->rings, 1);
    if (atomic_load(&bell->asleep) && atomic_exchange(&bell->asleep, 0))
        futex(&bell->rings, FUTEX_WAKE, 1, NULL);
}

unsigned bell_listen(struct bell *bell) { return atomic_load(&bell->rings); }

void bell_sleep(struct bell *bell, unsigned ticket, double seconds) {
    struct timespec timeout = {.tv_sec = (time_t)seconds};
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    atomic_store(&bell->asleep, 1);
    futex(&bell->rings, FUTEX_WAIT, ticket, &timeout); /* not at all unless rings == ticket */
    atomic_store(&bell->asleep, 0);
}
