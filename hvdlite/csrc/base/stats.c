#include "base/stats.h"

#include <stddef.h>

static uint64_t nanoseconds(double seconds) { return (uint64_t)(seconds * 1e9); }

void stats_wait(struct stats *s, double since, int rank) {
    if (!s) return;
    atomic_store_explicit(&s->waits_since, nanoseconds(since), memory_order_relaxed);
    atomic_store_explicit(&s->waits_for, rank + 1, memory_order_relaxed);
}

void stats_waited(struct stats *s, double since, double until) {
    if (!s || until <= since) return;
    atomic_fetch_add_explicit(&s->waited, nanoseconds(until - since), memory_order_relaxed);
    atomic_store_explicit(&s->waits_since, 0, memory_order_relaxed);
    atomic_store_explicit(&s->waits_for, 0, memory_order_relaxed);
}
