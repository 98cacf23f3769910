/* Random numbers for tests, equal on every machine. Each rank gets its own sequence from a seed. */
#ifndef HVDLITE_RANDOM_H
#define HVDLITE_RANDOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014. */
static inline uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t random_next(uint64_t *state) { return mixed(*state += 0x9e3779b97f4a7c15u); }

/* Returns 0 <= result < limit. */
static inline size_t random_below(uint64_t *state, size_t limit) {
    return (size_t)(random_next(state) % limit);
}

/* Returns -1 <= result < 1. */
static inline double random_unit(uint64_t *state) {
    return (double)(random_next(state) >> 11) * 0x1p-52 - 1;
}

/* Returns the seed of the data of one message between two ranks. */
static inline uint64_t seed_of(int from, int to, int number) {
    return (uint64_t)from << 20 | (uint64_t)to << 10 | (uint64_t)number;
}

/* fill_mixed fills memory with bytes that the seed determines; is_mixed checks them. */
static inline void fill_mixed(unsigned char *data, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)mixed(seed << 20 | i);
}

static inline bool is_mixed(const unsigned char *data, size_t n, uint64_t seed) {
    for (size_t i = 0; i < n; i++)
        if (data[i] != (unsigned char)mixed(seed << 20 | i)) return false;
    return true;
}

/* Returns a random order of 0 .. n-1 (Fisher and Yates). */
static inline void random_order(uint64_t *state, size_t *order, size_t n) {
    for (size_t i = 0; i < n; i++) {
        size_t j = random_below(state, i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

#endif
