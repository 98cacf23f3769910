/* Coded gradients, which each rank can compute for all ranks, and their expected sum. */
#ifndef HVDLITE_CODED_CASE_H
#define HVDLITE_CODED_CASE_H

#include "check.h"

#include "kernels/codec.h"
#include "random.h"

static const struct codec CODED_CASES[] = {{HVD_CODEC_FLOAT16, 0},
                                           {HVD_CODEC_BFLOAT16, 0},
                                           {HVD_CODEC_2BIT, 0.5},
                                           {HVD_CODEC_1BIT, 0},
                                           {HVD_CODEC_TOPK, 0.1}};
enum { CODED_CASES_N = sizeof CODED_CASES / sizeof *CODED_CASES };

/* Quarters: sums of casts are exact in any order. */
static inline void coded_gradient(int rank, size_t n, float *out) {
    uint64_t random = 1000 * n + (size_t)rank;
    for (size_t i = 0; i < n; i++) out[i] = (float)random_below(&random, 17) / 4 - 2;
}

/* The message of one rank, whose residual is zero; `bad`: with a NaN. */
static inline void coded_message(struct codec c, int rank, size_t n, bool bad, void *message) {
    OWNED float *in = room(n * sizeof *in), *residual = room(n * sizeof *in);
    coded_gradient(rank, n, in);
    if (bad && n) in[n / 2] = NAN;
    OK(codec_encode(c, in, 1, residual, n, message, ERR));
}

/* The sum of p ranks' messages times the factor, decoded here; bad: the rank that has a NaN. */
static inline float *coded_sum(struct codec c, int p, int bad, size_t n, double factor) {
    float *out = room(n * sizeof *out);
    size_t bytes = codec_bytes(c, n);
    OWNED char *messages = room((size_t)p * bytes);
    for (int r = 0; r < p; r++) coded_message(c, r, n, r == bad, messages + (size_t)r * bytes);
    if (codec_is_cast(c)) {
        const struct reduce_kernels *k = codec_kernels(c, p);
        k->widen(out, messages, n, 1);
        for (int r = 1; r < p; r++) k->combine(out, messages + (size_t)r * bytes, n);
        k->narrow(messages, out, n, (struct reduce_final){factor, 1});
        k->widen(out, messages, n, 1);
    } else {
        codec_decode(c, messages, bytes, (struct codec_sum){p, p, factor}, out, n);
    }
    return out;
}

/* The same bits, except for the payload of a NaN. */
static inline bool coded_same(const float *a, const float *b, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0 && !(isnan(a[i]) && isnan(b[i]))) return false;
    return true;
}

#endif
