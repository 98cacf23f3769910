#define _GNU_SOURCE /* sched_getaffinity, sched_getcpu */
#include "shm/window.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <unistd.h>

size_t window_bytes(int n) { return (size_t)n * sizeof(struct window_rank); }

void window_init(struct window *w, void *memory, int n, int self) {
    *w = (struct window){.ranks = memory, .n = n, .self = self};
}

void window_touch(void *memory, int self) {
    volatile char *own = (char *)((struct window_rank *)memory + self);
    for (size_t i = 0; i < sizeof(struct window_rank); i += 4096) own[i] = 0;
}

void window_raise(struct window *w, enum window_flag flag, uint64_t round) {
    atomic_store_explicit(&w->ranks[w->self].flags[flag].rounds, round + 1, memory_order_release);
}

bool window_raised(const struct window *w, int local_rank, enum window_flag flag, uint64_t round) {
    return atomic_load_explicit(&w->ranks[local_rank].flags[flag].rounds, memory_order_acquire) >
           round;
}

/* ---- cores ---- */

_Static_assert(WINDOW_CPUS == CPU_SETSIZE, "the window must have room for a whole cpu_set_t");

void cpus_publish(struct window *w) {
    cpu_set_t own;
    /* the call fails if the machine has more cores than a cpu_set_t has bits */
    if (sched_getaffinity(0, sizeof own, &own)) return;
    for (size_t i = 0; i < WINDOW_CPUS; i++) window_self(w)->cpus.usable[i] = CPU_ISSET(i, &own);
}

double cpus_quota(void) {
    char text[64] = "";
    double quota, period;
    int file = open("/sys/fs/cgroup/cpu.max", O_RDONLY | O_CLOEXEC);
    if (file < 0) return WINDOW_CPUS;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    /* if there is no limit, the text begins with "max" */
    bool limited = length > 0 && sscanf(text, "%lf %lf", &quota, &period) == 2;
    return limited && period > 0 ? quota / period : WINDOW_CPUS;
}

double cpus_share(const struct window *w) {
    double share = 0;
    for (size_t i = 0; i < WINDOW_CPUS; i++) {
        int ranks = 0;
        if (!w->ranks[w->self].cpus.usable[i]) continue;
        for (int r = 0; r < w->n; r++) ranks += w->ranks[r].cpus.usable[i];
        share += 1.0 / ranks;
    }
    return share;
}

/* Publishes the core on which this thread runs; returns 1 + the core. Writes only a changed value,
 * because every write slows waiting ranks that read the same cache line. */
static int publish_core(struct window *w) {
    int own = sched_getcpu() + 1;
    atomic_int *last = &window_self(w)->cpus.last;
    if (atomic_load_explicit(last, memory_order_relaxed) != own)
        atomic_store_explicit(last, own, memory_order_relaxed);
    return own;
}

void cpus_publish_core(struct window *w) { publish_core(w); }

bool cpus_crowded(struct window *w) {
    int own = publish_core(w);
    for (int i = 0; i < w->n; i++)
        if (i != w->self &&
            atomic_load_explicit(&w->ranks[i].cpus.last, memory_order_relaxed) == own)
            return true;
    return false;
}
