#include "shm/window.h"

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
