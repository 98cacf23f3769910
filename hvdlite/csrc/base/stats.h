/* Counters of this rank's traffic and work, over all its groups.
 *
 * Engine threads count. Any thread may read the counters, and so may other processes, through the
 * flight recorder. */
#ifndef HVDLITE_BASE_STATS_H
#define HVDLITE_BASE_STATS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct stats {
    _Atomic uint64_t
        bytes_sent_network;             /* bytes of tensors, sent to other ranks by the transport */
    _Atomic uint64_t bytes_sent_window; /* bytes of tensors, written for other ranks of this host */
    _Atomic uint64_t tensors, batches;  /* that ended without an error */
    _Atomic uint64_t waited;            /* nanoseconds that work has waited for other ranks */
    /* since when work waits, in nanoseconds of clock_now; 0: it does not wait */
    _Atomic uint64_t waits_since;
    _Atomic int32_t waits_for; /* 1 + the job's number of the rank that work waits for; 0: none */
};

static inline uint64_t stats_nanoseconds(double seconds) { return (uint64_t)(seconds * 1e9); }

/* stats_wait: since that time (clock_now) work waits for that rank of the job (-1: not known).
 * stats_waited: the wait has ended. If s is NULL, neither counts. */
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
