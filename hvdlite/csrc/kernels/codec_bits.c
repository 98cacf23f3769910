/* Codecs that send each value as one bit or as two bits. */
#include "kernels/codec.h"

#include "base/floats.h"
#include "kernels/half.h"

enum { MOST_VALUES = 32 }; /* the most values that a word encodes */

/* The layout of a codec's encoded 32-bit words, and the codec's functions. */
struct bits {
    size_t values;           /* number of values in a word */
    int32_t gain, bias_each; /* the sum of the values of m ranks is gain * count + m * bias_each */
    void (*encode)(const float *in, float scale, float *residual, size_t n, float t,
                   uint32_t *words);
    struct reduce_kernels sum8, sum16; /* kernels whose results are int8 and int16 */
};

/* Return the lowest bit of value i in a word. The first value is in the highest bits of the word's
 * first byte in memory. The shift is computed because a table of shifts took four times as long. */
static inline uint32_t shift2(size_t i) { return (uint32_t)(8 * (i / 4) + 6 - 2 * (i % 4)); }
static inline uint32_t shift1(size_t i) { return (uint32_t)(8 * (i / 8) + 7 - i % 8); }

/* ---- encoding; masks instead of branches let the compiler vectorize the loops ---- */

static inline uint32_t encode_word2(const float *restrict in, float scale, float *restrict residual,
                                    size_t n, float t) {
    uint32_t word = 0, plus = bits_of_float(t), minus = bits_of_float(-t);
    for (size_t i = 0; i < n; i++) {
        float r = residual[i] + in[i] * scale;
        uint32_t up = -(uint32_t)(r >= t), down = -(uint32_t)(r <= -t);
        word |= ((up & 3u) | (down & 2u)) << shift2(i);
        residual[i] = r - float_of_bits((up & plus) | (down & minus));
    }
    return word;
}

static inline uint32_t encode_word1(const float *restrict in, float scale, float *restrict residual,
                                    size_t n, float t) {
    uint32_t word = 0;
    for (size_t i = 0; i < n; i++) {
        float r = residual[i] + in[i] * scale;
        uint32_t up = -(uint32_t)(r > t);
        word |= (up & 1u) << shift1(i);
        /* subtracts 1 if `up`, else adds 1 */
        residual[i] = r - float_of_bits(0xbf800000u ^ (up & 0x80000000u));
    }
    return word;
}

#define ENCODE(WIDTH, VALUES)                                                                      \
    SIMD static void encode##WIDTH(const float *in, float scale, float *residual, size_t n,        \
                                   float t, uint32_t *words) {                                     \
        for (; n >= VALUES; n -= VALUES, in += VALUES, residual += VALUES)                         \
            *words++ = encode_word##WIDTH(in, scale, residual, VALUES, t);                         \
        if (n) *words = encode_word##WIDTH(in, scale, residual, n, t);                             \
    }
ENCODE(2, 16)
ENCODE(1, 32)

/* ---- adding: an int32 counts each value of a word ---- */

/* The bits 11, 10, 00 mean 1, -1, 0. Shifts took half as long as masks. */
static inline int32_t value2(uint32_t word, size_t i) {
    return (int32_t)(2 * (word >> shift2(i) & 1u) - (word >> shift2(i) >> 1 & 1u));
}

static inline int32_t value1(uint32_t word, size_t i) { return (int32_t)(word >> shift1(i) & 1u); }

#define KERNELS(WIDTH, VALUES)                                                                     \
    SIMD static void widen##WIDTH(void *wide, const void *in, size_t n, double scale) {            \
        int32_t *restrict w = wide;                                                                \
        const uint32_t *restrict x = in;                                                           \
        (void)scale;                                                                               \
        for (size_t j = 0; j < n; j++)                                                             \
            for (size_t i = 0; i < VALUES; i++) w[VALUES * j + i] = value##WIDTH(x[j], i);         \
    }                                                                                              \
    SIMD static void combine##WIDTH(void *wide, const void *in, size_t n) {                        \
        int32_t *restrict w = wide;                                                                \
        const uint32_t *restrict x = in;                                                           \
        for (size_t j = 0; j < n; j++)                                                             \
            for (size_t i = 0; i < VALUES; i++) w[VALUES * j + i] += value##WIDTH(x[j], i);        \
    }                                                                                              \
    SIMD static void combine_wide##WIDTH(void *out, const void *a, const void *b, size_t n) {      \
        int32_t *o = out;                                                                          \
        const int32_t *x = a, *y = b;                                                              \
        for (size_t i = 0; i < VALUES * n; i++) o[i] = x[i] + y[i];                                \
    }

#define NARROW(WIDTH, VALUES, BITS)                                                                \
    SIMD static void narrow##WIDTH##_##BITS(void *out, const void *wide, size_t n,                 \
                                            struct reduce_final final) {                           \
        int##BITS##_t *o = out;                                                                    \
        const int32_t *w = wide;                                                                   \
        (void) final;                                                                              \
        for (size_t i = 0; i < VALUES * n; i++) o[i] = (int##BITS##_t)w[i];                        \
    }

KERNELS(2, 16)
KERNELS(1, 32)
NARROW(2, 16, 8)
NARROW(2, 16, 16)
NARROW(1, 32, 8)
NARROW(1, 32, 16)

/* ---- counts to float32 ---- */

#define FLOATS(BITS)                                                                               \
    SIMD static void floats_of_int##BITS(const int##BITS##_t *restrict sum, int32_t gain,          \
                                         int32_t bias, float level, float *restrict out,           \
                                         size_t n) {                                               \
        for (size_t i = 0; i < n; i++) out[i] = (float)(gain * sum[i] + bias) * level;             \
    }
FLOATS(8)
FLOATS(16)
FLOATS(32)

#define SUM(WIDTH, VALUES, BITS)                                                                   \
    {.size = sizeof(uint32_t),                                                                     \
     .wide = (VALUES) * sizeof(int32_t),                                                           \
     .result = (VALUES) * sizeof(int##BITS##_t),                                                   \
     .widen = widen##WIDTH,                                                                        \
     .combine = combine##WIDTH,                                                                    \
     .combine_wide = combine_wide##WIDTH,                                                          \
     .narrow = narrow##WIDTH##_##BITS}

static const struct bits *bits_of(int kind) {
    static const struct bits TWO = {16, 1, 0, encode2, SUM(2, 16, 8), SUM(2, 16, 16)};
    static const struct bits ONE = {32, 2, -1, encode1, SUM(1, 32, 8), SUM(1, 32, 16)};
    return kind == HVD_CODEC_2BIT ? &TWO : &ONE;
}

/* Returns the factor by which decoding multiplies the sum of the values 1, 0 and -1 in messages. */
static float level_of(struct codec c, double factor) {
    return (float)((c.kind == HVD_CODEC_2BIT ? (double)(float)c.parameter : 1) * factor);
}

size_t codec_bits_values(int kind) { return bits_of(kind)->values; }

size_t codec_bits_words(int kind, size_t n) {
    size_t values = bits_of(kind)->values;
    return (n + values - 1) / values;
}

void codec_bits_encode(struct codec c, const float *in, float scale, float *residual, size_t n,
                       uint32_t *words) {
    bits_of(c.kind)->encode(in, scale, residual, n, (float)c.parameter, words);
}

/* Works on blocks of words, so that the counts of a block stay in the L1 cache. */
void codec_bits_decode(struct codec c, const char *words, size_t stride, struct codec_sum spec,
                       float *out, size_t n) {
    enum { BLOCK = 128 }; /* words in a block; `sum` has at most 16 KiB */
    const struct bits *b = bits_of(c.kind);
    int32_t sum[BLOCK * MOST_VALUES];
    size_t block = BLOCK * b->values;
    for (; n; words += BLOCK * sizeof(uint32_t), out += block) {
        size_t most = n < block ? n : block;
        b->sum8.widen(sum, words, codec_bits_words(c.kind, most), 1);
        for (int r = 1; r < spec.ranks; r++)
            b->sum8.combine(sum, words + (size_t)r * stride, codec_bits_words(c.kind, most));
        floats_of_int32(sum, b->gain, b->bias_each * spec.contributors, level_of(c, spec.factor),
                        out, most);
        n -= most;
    }
}

const struct reduce_kernels *codec_bits_kernels(int kind, int ranks) {
    const struct bits *b = bits_of(kind);
    if (ranks > INT16_MAX) return NULL;
    return ranks > INT8_MAX ? &b->sum16 : &b->sum8;
}

void codec_bits_decode_sum(struct codec c, const void *sum, struct codec_sum spec, float *out,
                           size_t n) {
    const struct bits *b = bits_of(c.kind);
    if (spec.ranks > INT8_MAX)
        floats_of_int16(sum, b->gain, b->bias_each * spec.contributors, level_of(c, spec.factor),
                        out, n);
    else
        floats_of_int8(sum, b->gain, b->bias_each * spec.contributors, level_of(c, spec.factor),
                       out, n);
}
