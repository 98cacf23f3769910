#include "engine/round.h"

#include "base/clock.h"

#define CLOSED ((uint64_t)1 << 15)

static uint64_t round_of(uint64_t word) { return word >> 16; }
static uint64_t count_of(uint64_t word) { return word & (CLOSED - 1); }

bool round_arrive(_Atomic uint64_t *word, uint64_t own) {
    uint64_t w = atomic_load_explicit(word, memory_order_acquire), next;
    do {
        bool here = round_of(w) == round_of(own);
        if (here && w & CLOSED) return false;
        next = (here ? w : own) + 1;
    } while (!atomic_compare_exchange_weak_explicit(word, &w, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    return true;
}

bool round_close(_Atomic uint64_t *word, uint64_t own, bool arrived, uint64_t n) {
    uint64_t w = atomic_load_explicit(word, memory_order_acquire), next;
    do {
        bool here = round_of(w) == round_of(own);
        if (here ? count_of(w) == n : arrived) return false; /* others are in the next one */
        next = (here ? w : own) | CLOSED;
    } while (!atomic_compare_exchange_weak_explicit(word, &w, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    return true;
}

bool round_wait(_Atomic uint64_t *word, uint64_t own, uint64_t n, struct wait_policy policy) {
    struct waiter waiter = {0};
    for (unsigned looks = 1;; looks++) {
        uint64_t w = atomic_load_explicit(word, memory_order_acquire);
        if (round_of(w) != round_of(own) || count_of(w) == n) return true;
        if (w & CLOSED) return false;
        if (policy.spin > 0 && looks % UNTIMED) {
            clock_relax();
            continue;
        }
        double pause = waiter_next(&waiter, clock_now(), policy, 1);
        if (pause > 0) return !round_close(word, own, true, n);
        if (pause < 0) clock_yield();
    }
}
