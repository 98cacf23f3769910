/* What the tests of the codecs share: gradients, the messages of several ranks, and their sum. */
#ifndef HVDLITE_CODEC_CASE_H
#define HVDLITE_CODEC_CASE_H

#include "check.h"

#include "kernels/codec.h"
#include "random.h"

enum { MOST = 1009, MOST_RANKS = 9 };

static const size_t SIZES[] = {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 511, MOST};
enum { NSIZES = sizeof SIZES / sizeof *SIZES };

/* Exactly as large as needed: the address sanitizer sees one byte too many. */
static inline float *gradient(uint64_t *random, size_t n) {
    float *x = room(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(2 * random_unit(random));
    return x;
}

/* Messages of p ranks, one after the other. */
static inline uint8_t *messages_of(struct codec c, int p, size_t n) {
    uint64_t random = 3 * n + (size_t)p;
    size_t bytes = codec_bytes(c, n);
    uint8_t *messages = room(bytes * (size_t)p);
    for (int r = 0; r < p; r++) {
        OWNED float *in = gradient(&random, n), *residual = room(n * 4);
        OK(codec_encode(c, in, 1, residual, n, messages + (size_t)r * bytes, ERR));
    }
    return messages;
}

static inline void add_messages(struct codec c, const uint8_t *messages, int p, size_t n,
                                void *sum) {
    const struct reduce_kernels *k = codec_kernels(c, p);
    size_t bytes = codec_bytes(c, n), words = bytes / k->size;
    OWNED char *wide = room(words * k->wide);
    k->widen(wide, messages, words, 1);
    for (int r = 1; r < p; r++) k->combine(wide, messages + (size_t)r * bytes, words);
    k->narrow(sum, wide, words, (struct reduce_final){1, 1});
}

#endif
