/* The data for tests of codecs. Every rank can compute the gradients of all ranks. */
#ifndef HVDLITE_CODEC_CASE_H
#define HVDLITE_CODEC_CASE_H

#include "check.h"

#include "kernels/codec.h"
#include "random.h"

static const struct codec CODED_CASES[] = {{HVD_CODEC_FLOAT16, 0},
                                           {HVD_CODEC_BFLOAT16, 0},
                                           {HVD_CODEC_2BIT, 0.5},
                                           {HVD_CODEC_1BIT, 0},
                                           {HVD_CODEC_TOPK, 0.1}};
enum { CODED_CASES_N = sizeof CODED_CASES / sizeof *CODED_CASES };

enum { CODEC_RANKS = 9, CODEC_MOST = 1009 };
static const size_t CODEC_SIZES[] = {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 511, CODEC_MOST};
enum { CODEC_NSIZES = sizeof CODEC_SIZES / sizeof *CODEC_SIZES };

/* Returns n random values between -2 and 2, in memory of exactly this size, so that the address
 * sanitizer detects an access to one byte more. */
static inline float *gradient(uint64_t *random, size_t n) {
    float *x = room(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(2 * random_unit(random));
    return x;
}

/* Fills `out` with multiples of 1/4, whose sums are exact in any order, even as 16-bit floats. */
static inline void coded_gradient(int rank, size_t n, float *out) {
    uint64_t random = 1000 * n + (size_t)rank;
    for (size_t i = 0; i < n; i++) out[i] = (float)random_below(&random, 17) / 4 - 2;
}

static inline int encode_whole(struct codec c, const float *in, double scale, float *residual,
                               size_t n, void *message, hvd_error *err) {
    struct codec_input input = {c, in, scale, residual, message};
    return codec_encode(&input, codec_finite(&input, codec_whole(n)), codec_whole(n), err);
}

/* Encodes the gradient of one rank, with a residual of zero. `bad`: the gradient has a NaN. */
static inline void coded_message(struct codec c, int rank, size_t n, bool bad, void *message) {
    OWNED float *in = room(n * sizeof *in), *residual = room(n * sizeof *in);
    coded_gradient(rank, n, in);
    if (bad && n) in[n / 2] = NAN;
    OK(encode_whole(c, in, 1, residual, n, message, ERR));
}

/* Returns the messages of p ranks, one after another. bad: the rank whose gradient has a NaN, or
 * -1. */
static inline uint8_t *coded_messages(struct codec c, int p, int bad, size_t n) {
    size_t bytes = codec_bytes(c, n);
    uint8_t *messages = room((size_t)p * bytes);
    for (int r = 0; r < p; r++) coded_message(c, r, n, r == bad, messages + (size_t)r * bytes);
    return messages;
}

/* Adds the messages word by word, as a rank does with its part of the words. */
static inline void add_messages(struct codec c, const uint8_t *messages, int p, size_t n,
                                void *sum) {
    const struct reduce_kernels *k = codec_kernels(c, p);
    size_t bytes = codec_bytes(c, n), words = bytes / k->size;
    OWNED char *wide = room(words * k->wide);
    k->widen(wide, messages, words, 1);
    for (int r = 1; r < p; r++) k->combine(wide, messages + (size_t)r * bytes, words);
    k->narrow(sum, wide, words, (struct reduce_final){1, 1});
}

/* Decodes the sum of p ranks' messages, times the factor. */
static inline float *coded_sum(struct codec c, int p, int bad, size_t n, double factor) {
    float *out = room(n * sizeof *out);
    OWNED uint8_t *messages = coded_messages(c, p, bad, n);
    if (codec_is_cast(c)) {
        const struct reduce_kernels *k = codec_kernels(c, p);
        k->widen(out, messages, n, 1);
        for (size_t r = 1; r < (size_t)p; r++) k->combine(out, messages + r * codec_bytes(c, n), n);
        k->narrow(messages, out, n, (struct reduce_final){factor, 1});
        k->widen(out, messages, n, 1);
    } else {
        codec_decode(c, messages, codec_bytes(c, n), (struct codec_sum){p, p, factor}, out,
                     codec_whole(n));
    }
    return out;
}

/* Returns whether the bits are equal; NaNs may have different payloads. */
static inline bool coded_same(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

#endif
