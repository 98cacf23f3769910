/* Counters of this rank's traffic and work, summed over all its groups.
 *
 * Threads that step an engine or run a collective write the counters. Any thread may read them;
 * other processes read them through the flight recorder. */
#ifndef HVDLITE_BASE_STATS_H
#define HVDLITE_BASE_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct stats {
    _Atomic uint64_t bytes_sent_network; /* tensor bytes that the transport sent to other ranks */
    _Atomic uint64_t bytes_sent_window;  /* tensor bytes written for other ranks of this host */
    /* numbers of tensors and of batches that ended without an error */
    _Atomic uint64_t tensors, batches;
    /* nanoseconds for which tensors have waited for other ranks, in total */
    _Atomic uint64_t waited;
    /* start of the current wait, in nanoseconds of clock_now; 0: no wait */
    _Atomic uint64_t waits_since;
    /* 1 + the rank of the job for which a tensor waits; 0: none or unknown */
    _Atomic int32_t waits_for;
};

static inline uint64_t stats_nanoseconds(double seconds) { return (uint64_t)(seconds * 1e9); }

/* stats_wait records that a tensor has waited for `rank` of the job (-1: unknown) since the time
 * `since` (clock_now). stats_waited records the end of this wait. If s is NULL, both do nothing. */
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
