/* A keyed hash: only a process that has the key can compute the hash of a message.
 *
 * SipHash-2-4 (Aumasson and Bernstein, 2012) over whole 64-bit words in the processor's byte order.
 * Hashing two words takes about 20 ns. */
#ifndef HVDLITE_BASE_SIPHASH_H
#define HVDLITE_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>

struct siphash_key {
    uint64_t half[2];
};

static inline uint64_t siphash_rotate(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

static inline void siphash_rounds(uint64_t v[4], int rounds) {
    while (rounds--) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = siphash_rotate(v[1], 13) ^ v[0];
        v[3] = siphash_rotate(v[3], 16) ^ v[2];
        v[0] = siphash_rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = siphash_rotate(v[1], 17) ^ v[2];
        v[3] = siphash_rotate(v[3], 21) ^ v[0];
        v[2] = siphash_rotate(v[2], 32);
    }
}

static inline uint64_t siphash(struct siphash_key key, const uint64_t *words, size_t n) {
    uint64_t v[4] = {key.half[0] ^ 0x736f6d6570736575u, key.half[1] ^ 0x646f72616e646f6du,
                     key.half[0] ^ 0x6c7967656e657261u, key.half[1] ^ 0x7465646279746573u};
    for (size_t i = 0; i <= n; i++) {
        /* the last word encodes the length */
        uint64_t word = i < n ? words[i] : (uint64_t)(8 * n) << 56;
        v[3] ^= word;
        siphash_rounds(v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    siphash_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
