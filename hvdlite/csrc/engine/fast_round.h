/* The word in the window that counts the ranks that have arrived in a round of the fast path.
 *
 * generation (40 bits) | round (8) | closed (1) | number of ranks that have arrived (15). */
#ifndef HVDLITE_ENGINE_FAST_ROUND_H
#define HVDLITE_ENGINE_FAST_ROUND_H

#include "base/os.h"
#include "transport/transport.h"

#include <stdatomic.h>

/* A spin reads the clock once in UNTIMED reads of the word. Chosen, not measured. If larger, spins
 * last longer than their limit. If smaller, reads of the clock delay the reads of the word. */
enum { UNTIMED = 16 };

static inline uint64_t word_of(uint64_t generation, uint64_t round) {
    return generation << 24 | (round & 0xff) << 16;
}

/* the bits below count the ranks that have arrived, so a host may have 32,767 ranks */
#define CLOSED ((uint64_t)1 << 15)

static inline uint64_t round_of(uint64_t word) { return word >> 16; }
static inline uint64_t count_of(uint64_t word) { return word & (CLOSED - 1); }

/* Counts this rank in the round, one collective. Returns false if the round is closed. */
static inline bool round_arrive(_Atomic uint64_t *word, uint64_t own, uint64_t n) {
    /* Guess the value of the word after the last round: a read of the word before the
     * compare-and-swap would fetch the cache line twice. */
    uint64_t w = own - word_of(0, 1) + n, next;
    do {
        bool same_round = round_of(w) == round_of(own);
        if (same_round && w & CLOSED) return false;
        next = (same_round ? w : own) + 1;
    } while (!atomic_compare_exchange_weak_explicit(word, &w, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    return true;
}

/* Closes the round and returns true. But if all ranks have arrived, does not close it and returns
 * false. arrived: this rank has been counted in the round. */
static inline bool round_close(_Atomic uint64_t *word, uint64_t own, bool arrived, uint64_t n) {
    uint64_t w = atomic_load_explicit(word, memory_order_acquire), next;
    do {
        bool same_round = round_of(w) == round_of(own);
        /* all ranks have arrived; some may be in the next round already: then not same_round */
        if (same_round ? count_of(w) == n : arrived) return false;
        next = (same_round ? w : own) | CLOSED;
    } while (!atomic_compare_exchange_weak_explicit(word, &w, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    return true;
}

/* Returns true if all n ranks have arrived, false if the round is closed. */
static inline bool round_wait(_Atomic uint64_t *word, uint64_t own, uint64_t n,
                              const struct transport *t) {
    struct wait_policy policy = {0};
    struct waiter waiter = {0};
    for (unsigned looks = 1;; looks++) {
        uint64_t w = atomic_load_explicit(word, memory_order_acquire);
        if (round_of(w) != round_of(own) || count_of(w) == n) return true;
        if (w & CLOSED) return false;
        if (looks == 1) policy = transport_policy(t);
        if (policy.spin > 0 && looks % UNTIMED) {
            clock_relax();
            continue;
        }
        double pause = waiter_next(&waiter, clock_now(), policy, 1);
        if (pause > 0) return !round_close(word, own, true, n);
        waiter_do(&waiter, pause);
    }
}

#endif
