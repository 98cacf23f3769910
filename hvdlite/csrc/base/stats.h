/* Counts of what this rank has sent and done, in all its groups together.
 *
 * Engine threads count; any thread reads, and through the flight recorder other processes. */
#ifndef HVDLITE_BASE_STATS_H
#define HVDLITE_BASE_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct stats {
    _Atomic uint64_t bytes_sent_network; /* of tensors, by transfers to other ranks */
    _Atomic uint64_t bytes_sent_window;  /* of tensors, for other ranks of this host */
    _Atomic uint64_t tensors, batches;   /* done without an error */
    _Atomic uint64_t waited;             /* nanoseconds in which work waited for other ranks */
    _Atomic uint64_t waits_since;        /* nanoseconds of clock_now; 0: it does not wait now */
    _Atomic int32_t waits_for; /* 1 + the rank of the job that a transfer needs; 0: none */
};

static inline uint64_t stats_nanoseconds(double seconds) { return (uint64_t)(seconds * 1e9); }

/* Work waits since then, by clock_now, for that rank of the job (-1: not known); and that wait has
 * ended. s NULL: nothing is counted. */
static inline void stats_wait(struct stats *s, double since, int rank) {
    if (!s) return;
    atomic_store_explicit(&s->waits_since, stats_nanoseconds(since), memory_order_relaxed);
    atomic_store_explicit(&s->waits_for, rank + 1, memory_order_relaxed);
}

static inline void stats_waited(struct stats *s, double since, double until) {
    if (!s || until <= since) return;
    atomic_fetch_add_explicit(&s->waited, stats_nanoseconds(until - since), memory_order_relaxed);
    atomic_store_explicit(&s->waits_since, 0, memory_order_relaxed);
    atomic_store_explicit(&s->waits_for, 0, memory_order_relaxed);
}

#endif
