#include "kernels/reduce.h"

#include "base/floats.h"
#include "kernels/half.h"

#include <string.h>

/* For dtypes that are their own accumulators. */
#define SAME(x) (x)

/* op(a, b) of two accumulators, without a branch, so the loops vectorise. Integers are computed
 * in the unsigned type U, which wraps on overflow; signed overflow is undefined in C. */
#define SUM(U, a, b) ((U)(a) + (U)(b))
#define PRODUCT(U, a, b) ((U)(a) * (U)(b))
#define MIN(U, a, b) ((((a) < (b)) | ((a) != (a))) ? (a) : (b))
#define MAX(U, a, b) ((((a) > (b)) | ((a) != (a))) ? (a) : (b))
#define OR(U, a, b) (((a) | (b)) != 0)
#define AND(U, a, b) (((a) != 0) & ((b) != 0))

/* NAME names the functions; T is the element, W its accumulator. */
#define COMBINE(NAME, T, W, U, WIDE_OF, OP)                                                        \
    SIMD static void combine_##NAME(void *wide, const void *in, size_t n) {                        \
        W *w = wide;                                                                               \
        const T *x = in;                                                                           \
        for (size_t i = 0; i < n; i++) {                                                           \
            W a = w[i], b = (W)WIDE_OF(x[i]);                                                      \
            w[i] = (W)OP(U, a, b);                                                                 \
        }                                                                                          \
    }                                                                                              \
    SIMD static void combine_wide_##NAME(void *out, const void *a, const void *b, size_t n) {      \
        W *o = out;                                                                                \
        const W *x = a, *y = b;                                                                    \
        for (size_t i = 0; i < n; i++) o[i] = (W)OP(U, x[i], y[i]);                                \
    }

#define KERNELS(DTYPE, T, W, U, WIDE_OF)                                                           \
    COMBINE(DTYPE##_sum, T, W, U, WIDE_OF, SUM)                                                    \
    COMBINE(DTYPE##_min, T, W, U, WIDE_OF, MIN)                                                    \
    COMBINE(DTYPE##_max, T, W, U, WIDE_OF, MAX)                                                    \
    COMBINE(DTYPE##_product, T, W, U, WIDE_OF, PRODUCT)

/* Floating point: scale and divisor are one factor, rounded once to the accumulator type. */
#define FLOAT_KERNELS(DTYPE, T, W, WIDE_OF, NARROW_OF)                                             \
    KERNELS(DTYPE, T, W, W, WIDE_OF)                                                               \
    SIMD static void widen_##DTYPE(void *wide, const void *in, size_t n, double scale) {           \
        W *w = wide, factor = (W)scale;                                                            \
        const T *x = in;                                                                           \
        for (size_t i = 0; i < n; i++) w[i] = (W)WIDE_OF(x[i]) * factor;                           \
    }                                                                                              \
    SIMD static void narrow_##DTYPE(void *out, const void *wide, size_t n,                         \
                                    struct reduce_final final) {                                   \
        T *o = out;                                                                                \
        const W *w = wide;                                                                         \
        W factor = (W)(final.scale / (double) final.divisor);                                      \
        for (size_t i = 0; i < n; i++) o[i] = (T)NARROW_OF(w[i] * factor);                         \
    }                                                                                              \
    SIMD static void pair_##DTYPE(void *out, const void *a, const void *b, size_t n, double scale, \
                                  struct reduce_final final) {                                     \
        T *o = out;                                                                                \
        const T *x = a, *y = b;                                                                    \
        W before = (W)scale, after = (W)(final.scale / (double) final.divisor);                    \
        _Pragma("GCC ivdep") /* out may be a or b, which is safe in vectorised code */             \
            for (size_t i = 0; i < n; i++) o[i] =                                                  \
                (T)NARROW_OF(((W)WIDE_OF(x[i]) * before + (W)WIDE_OF(y[i]) * before) * after);     \
    }

/* Scaled integers are computed in double and truncated to int64: NaN becomes 0 and larger values
 * saturate, because C leaves both undefined. Then the value wraps to its dtype. */
static inline int64_t truncated(double x) {
    if (x != x) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

#define INTEGER_KERNELS(DTYPE, T, W, U)                                                            \
    KERNELS(DTYPE, T, W, U, SAME)                                                                  \
    SIMD static void widen_##DTYPE(void *wide, const void *in, size_t n, double scale) {           \
        W *w = wide;                                                                               \
        const T *x = in;                                                                           \
        if (scale == 1)                                                                            \
            for (size_t i = 0; i < n; i++) w[i] = (W)x[i];                                         \
        else                                                                                       \
            for (size_t i = 0; i < n; i++) w[i] = (W)truncated((double)x[i] * scale);              \
    }                                                                                              \
    SIMD static void narrow_##DTYPE(void *out, const void *wide, size_t n,                         \
                                    struct reduce_final final) {                                   \
        T *o = out;                                                                                \
        const W *w = wide;                                                                         \
        if (final.scale != 1)                                                                      \
            for (size_t i = 0; i < n; i++)                                                         \
                o[i] = (T)truncated((double)w[i] * final.scale / (double) final.divisor);          \
        else if (final.divisor != 1)                                                               \
            for (size_t i = 0; i < n; i++) o[i] = (T)(w[i] / (W) final.divisor);                   \
        else                                                                                       \
            for (size_t i = 0; i < n; i++) o[i] = (T)w[i];                                         \
    }

FLOAT_KERNELS(float16, uint16_t, float, float_of_half, half_of_float)
FLOAT_KERNELS(bfloat16, uint16_t, float, float_of_bfloat, bfloat_of_float)
FLOAT_KERNELS(float32, float, float, SAME, SAME)
FLOAT_KERNELS(float64, double, double, SAME, SAME)
INTEGER_KERNELS(uint8, uint8_t, int32_t, uint32_t)
INTEGER_KERNELS(int8, int8_t, int32_t, uint32_t)
INTEGER_KERNELS(int16, int16_t, int32_t, uint32_t)
INTEGER_KERNELS(int32, int32_t, int64_t, uint64_t)
INTEGER_KERNELS(int64, int64_t, int64_t, uint64_t)
COMBINE(truth_sum, uint8_t, uint8_t, uint8_t, SAME, OR)
COMBINE(truth_min, uint8_t, uint8_t, uint8_t, SAME, AND)
COMBINE(truth_max, uint8_t, uint8_t, uint8_t, SAME, OR)
COMBINE(truth_product, uint8_t, uint8_t, uint8_t, SAME, AND)

/* Every byte other than 0 is true. `scale` is always 1: request_check refuses scaled and
 * averaged bools. */
static void widen_truth(void *wide, const void *in, size_t n, double scale) {
    uint8_t *w = wide;
    const uint8_t *x = in;
    (void)scale;
    for (size_t i = 0; i < n; i++) w[i] = x[i] != 0;
}

static void narrow_truth(void *out, const void *wide, size_t n, struct reduce_final final) {
    (void) final;
    widen_truth(out, wide, n, 1);
}

#define ROW(DTYPE, COMBINES, T, W, PAIR, PARTIAL)                                                  \
    {.size = sizeof(T),                                                                            \
     .wide = sizeof(W),                                                                            \
     .result = sizeof(T),                                                                          \
     .partial = PARTIAL,                                                                           \
     .widen = widen_##DTYPE,                                                                       \
     .combine = combine_##DTYPE##_##COMBINES,                                                      \
     .combine_wide = combine_wide_##DTYPE##_##COMBINES,                                            \
     .narrow = narrow_##DTYPE,                                                                     \
     .pair = PAIR}

/* The rows of a dtype. SUMS and REST: the enum reduce_partial of sums and of all other results. */
#define ROWS(DTYPE, T, W, PAIR, SUMS, REST)                                                        \
    static const struct reduce_kernels rows_##DTYPE[] = {                                          \
        [HVD_SUM] = ROW(DTYPE, sum, T, W, PAIR, SUMS),                                             \
        [HVD_AVERAGE] = ROW(DTYPE, sum, T, W, PAIR, SUMS),                                         \
        [HVD_MIN] = ROW(DTYPE, min, T, W, NULL, REST),                                             \
        [HVD_MAX] = ROW(DTYPE, max, T, W, NULL, REST),                                             \
        [HVD_PRODUCT] = ROW(DTYPE, product, T, W, NULL, REST),                                     \
        [HVD_ADASUM] = ROW(DTYPE, sum, T, W, NULL, SUMS)};                                         \
    _Static_assert(sizeof rows_##DTYPE / sizeof *rows_##DTYPE == HVD_OPS, "each op has a kernel");

#define INTEGER_ROWS(DTYPE, T, W) ROWS(DTYPE, T, W, NULL, REDUCE_WRAPS, REDUCE_WRAPS)
#define FLOAT_ROWS(DTYPE, T, W) ROWS(DTYPE, T, W, pair_##DTYPE, REDUCE_ROUNDS, REDUCE_WIDE_ONLY)

FLOAT_ROWS(float16, uint16_t, float)
FLOAT_ROWS(bfloat16, uint16_t, float)
FLOAT_ROWS(float32, float, float)
FLOAT_ROWS(float64, double, double)
INTEGER_ROWS(uint8, uint8_t, int32_t)
INTEGER_ROWS(int8, int8_t, int32_t)
INTEGER_ROWS(int16, int16_t, int32_t)
INTEGER_ROWS(int32, int32_t, int64_t)
INTEGER_ROWS(int64, int64_t, int64_t)
INTEGER_ROWS(truth, uint8_t, uint8_t)

static const struct reduce_kernels *const ROWS_OF[] = {
    [HVD_UINT8] = rows_uint8,     [HVD_INT8] = rows_int8,       [HVD_INT32] = rows_int32,
    [HVD_INT64] = rows_int64,     [HVD_FLOAT16] = rows_float16, [HVD_BFLOAT16] = rows_bfloat16,
    [HVD_FLOAT32] = rows_float32, [HVD_FLOAT64] = rows_float64, [HVD_BOOL] = rows_truth,
    [HVD_INT16] = rows_int16};
_Static_assert(sizeof ROWS_OF / sizeof *ROWS_OF == HVD_DTYPES, "each dtype has kernels");

const struct reduce_kernels *reduce_kernels(hvd_dtype dtype, hvd_op op) {
    return &ROWS_OF[dtype][op];
}

/* Bytes of accumulators in a block, which must fit into the L1 cache. */
enum { BLOCK = 4096 };

static void reduce_block(const struct reduce_kernels *k, void *out, const char *const *in,
                         int inputs, size_t at, size_t n, double scale, struct reduce_final final) {
    _Alignas(64) unsigned char sum[BLOCK], scaled[BLOCK];
    k->widen(sum, in[0] + at * k->size, n, scale);
    for (int i = 1; i < inputs; i++) {
        const char *next = in[i] + at * k->size;
        if (scale == 1) {
            k->combine(sum, next, n);
        } else {
            k->widen(scaled, next, n, scale);
            k->combine_wide(sum, sum, scaled, n);
        }
    }
    k->narrow((char *)out + at * k->result, sum, n, final);
}

void reduce_all(const struct reduce_kernels *k, void *out, const char *const *in, int inputs,
                size_t n, double scale, struct reduce_final final) {
    if (inputs == 2 && k->pair) {
        k->pair(out, in[0], in[1], n, scale, final);
        return;
    }
    size_t block = BLOCK / k->wide;
    for (size_t at = 0; at < n; at += block)
        reduce_block(k, out, in, inputs, at, n - at < block ? n - at : block, scale, final);
}

/* ---- vectors as a whole ---- */

/* number of parallel sums; the compiler vectorises across them, and each keeps its order */
enum { LANES = 8 };

#define ADD_PRODUCTS(l, u, v)                                                                      \
    do {                                                                                           \
        aa[l] += (u) * (u);                                                                        \
        bb[l] += (v) * (v);                                                                        \
        ab[l] += (u) * (v);                                                                        \
    } while (0)

#define VECTOR_KERNELS(W)                                                                          \
    SIMD static void blend_##W(void *out, double x, const void *a, double y, const void *b,        \
                               size_t n) {                                                         \
        W *o = out;                                                                                \
        const W *u = a, *v = b;                                                                    \
        for (size_t i = 0; i < n; i++) o[i] = (W)(x * (double)u[i] + y * (double)v[i]);            \
    }                                                                                              \
    SIMD static struct reduce_dots dots_##W(const void *a, const void *b, size_t n) {              \
        const W *x = a, *y = b;                                                                    \
        double aa[LANES] = {0}, bb[LANES] = {0}, ab[LANES] = {0};                                  \
        size_t i = 0;                                                                              \
        for (; i + LANES <= n; i += LANES)                                                         \
            for (size_t l = 0; l < LANES; l++)                                                     \
                ADD_PRODUCTS(l, (double)x[i + l], (double)y[i + l]);                               \
        for (; i < n; i++) ADD_PRODUCTS(i % LANES, (double)x[i], (double)y[i]);                    \
        struct reduce_dots sums = {0, 0, 0};                                                       \
        for (size_t l = 0; l < LANES; l++)                                                         \
            sums = (struct reduce_dots){sums.aa + aa[l], sums.bb + bb[l], sums.ab + ab[l]};        \
        return sums;                                                                               \
    }

VECTOR_KERNELS(float)
VECTOR_KERNELS(double)

struct reduce_dots reduce_dots(const struct reduce_kernels *k, const void *a, const void *b,
                               size_t n) {
    return k->wide == sizeof(float) ? dots_float(a, b, n) : dots_double(a, b, n);
}

void reduce_blend(const struct reduce_kernels *k, void *out, double x, const void *a, double y,
                  const void *b, size_t n) {
    if (k->wide == sizeof(float))
        blend_float(out, x, a, y, b, n);
    else
        blend_double(out, x, a, y, b, n);
}
