/* A round of express: one word for all ranks of a host, in which they count themselves.
 *
 * The word: generation (40 bits) | round (8) | closed (1) | ranks that have come (15). */
#ifndef HVDLITE_ENGINE_ROUND_H
#define HVDLITE_ENGINE_ROUND_H

#include "transport/wait.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { UNTIMED = 16 }; /* looks for one look at the clock */

static inline uint64_t word_of(uint64_t generation, uint64_t round) {
    return generation << 24 | (round & 0xff) << 16;
}

/* Counts this rank, the first of the round or not. False: the round is closed. */
bool round_arrive(_Atomic uint64_t *word, uint64_t own);
/* Closes the round; `arrived`: this rank has come to it. False: it is full. */
bool round_close(_Atomic uint64_t *word, uint64_t own, bool arrived, uint64_t n);
/* True: all n ranks have come. False: the round is closed. */
bool round_wait(_Atomic uint64_t *word, uint64_t own, uint64_t n, struct wait_policy policy);

#endif
