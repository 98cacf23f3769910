#include "kernels/reduce.h"

#include "base/floats.h"
#include "kernels/half.h"

#include <string.h>

/* For dtypes that are their own accumulators. */
#define SAME(x) (x)

/* op(a, b) of two accumulators, without a branch, so that loops vectorize. Integers are computed in
 * the unsigned type U, which wraps: signed overflow is undefined in C. */
#define SUM(U, a, b) ((U)(a) + (U)(b))
#define PRODUCT(U, a, b) ((U)(a) * (U)(b))
#define MIN(U, a, b) ((((a) < (b)) | ((a) != (a))) ? (a) : (b))
#define MAX(U, a, b) ((((a) > (b)) | ((a) != (a))) ? (a) : (b))
#define OR(U, a, b) (((a) | (b)) != 0)
#define AND(U, a, b) (((a) != 0) & ((b) != 0))

/* Defines combine_NAME and combine_wide_NAME. T: type of an element; W: type of its accumulator. */
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

/* Floating point: scale and divisor become one factor, which is rounded once, to W. */
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
        _Pragma("GCC ivdep") /* out may be a or b: safe in vectorized code */                      \
            for (size_t i = 0; i < n; i++) o[i] =                                                  \
                (T)NARROW_OF(((W)WIDE_OF(x[i]) * before + (W)WIDE_OF(y[i]) * before) * after);     \
    }

/* Scaled integers are computed in double and truncated to int64. NaN becomes 0 and larger values
 * saturate, because both conversions are undefined in C. The value then wraps to its dtype. */
static inline int64_t truncated(double x) {
    if (x != x) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

/* Like truncated(), for uint64_t accumulators: values below 2^64 do not saturate. */
static inline uint64_t truncated_unsigned(double x) {
    if (!(x >= 0x1p63)) return (uint64_t)truncated(x);
    return x < 0x1p64 ? (uint64_t)x : UINT64_MAX;
}
#define TRUNCATED(W, x) (IS_UNSIGNED(W) ? (W)truncated_unsigned(x) : (W)truncated(x))

#define INTEGER_KERNELS(DTYPE, T, W, U)                                                            \
    KERNELS(DTYPE, T, W, U, SAME)                                                                  \
    SIMD static void widen_##DTYPE(void *wide, const void *in, size_t n, double scale) {           \
        W *w = wide;                                                                               \
        const T *x = in;                                                                           \
        if (scale == 1)                                                                            \
            for (size_t i = 0; i < n; i++) w[i] = (W)x[i];                                         \
        else                                                                                       \
            for (size_t i = 0; i < n; i++) w[i] = TRUNCATED(W, (double)x[i] * scale);              \
    }                                                                                              \
    SIMD static void narrow_##DTYPE(void *out, const void *wide, size_t n,                         \
                                    struct reduce_final final) {                                   \
        T *o = out;                                                                                \
        const W *w = wide;                                                                         \
        if (final.scale != 1)                                                                      \
            for (size_t i = 0; i < n; i++)                                                         \
                o[i] = (T)TRUNCATED(W, (double)w[i] * final.scale / (double) final.divisor);       \
        else if (final.divisor != 1)                                                               \
            for (size_t i = 0; i < n; i++) o[i] = (T)(w[i] / (W) final.divisor);                   \
        else                                                                                       \
            for (size_t i = 0; i < n; i++) o[i] = (T)w[i];                                         \
    }

/* Every byte other than 0 means true. `scale` is always 1: request_check refuses bools that are
 * scaled or averaged. */
#define TRUTH_KERNELS(DTYPE, T, W, U)                                                              \
    COMBINE(DTYPE##_sum, T, W, U, SAME, OR)                                                        \
    COMBINE(DTYPE##_min, T, W, U, SAME, AND)                                                       \
    COMBINE(DTYPE##_max, T, W, U, SAME, OR)                                                        \
    COMBINE(DTYPE##_product, T, W, U, SAME, AND)                                                   \
    static void widen_##DTYPE(void *wide, const void *in, size_t n, double scale) {                \
        W *w = wide;                                                                               \
        const T *x = in;                                                                           \
        (void)scale;                                                                               \
        for (size_t i = 0; i < n; i++) w[i] = x[i] != 0;                                           \
    }                                                                                              \
    static void narrow_##DTYPE(void *out, const void *wide, size_t n, struct reduce_final final) { \
        (void) final;                                                                              \
        widen_##DTYPE(out, wide, n, 1);                                                            \
    }

#define KERNELS_OF(DTYPE, NAME, TORCH, MXNET, MPI, CLASS, ...) CLASS##_KERNELS(DTYPE, __VA_ARGS__)
DTYPES(KERNELS_OF)

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

/* The rows of a dtype. SUMS and REST: the reduce_partial of sums and of all other results. The last
 * argument has the rows that other classes lack, because OPS says that they refuse the op. */
#define ROWS(DTYPE, T, W, PAIR, SUMS, REST, ...)                                                   \
    static const struct reduce_kernels rows_##DTYPE[HVD_OPS] = {                                   \
        [HVD_SUM] = ROW(DTYPE, sum, T, W, PAIR, SUMS),                                             \
        [HVD_AVERAGE] = ROW(DTYPE, sum, T, W, PAIR, SUMS),                                         \
        [HVD_MIN] = ROW(DTYPE, min, T, W, NULL, REST),                                             \
        [HVD_MAX] = ROW(DTYPE, max, T, W, NULL, REST),                                             \
        [HVD_PRODUCT] = ROW(DTYPE, product, T, W, NULL, REST),                                     \
        __VA_ARGS__};

#define INTEGER_ROWS(DTYPE, T, W, U) ROWS(DTYPE, T, W, NULL, REDUCE_WRAPS, REDUCE_WRAPS, )
#define TRUTH_ROWS INTEGER_ROWS
#define FLOAT_ROWS(DTYPE, T, W, WIDE_OF, NARROW_OF)                                                \
    ROWS(DTYPE, T, W, pair_##DTYPE, REDUCE_ROUNDS,                                                 \
         REDUCE_WIDE_ONLY, [HVD_ADASUM] = ROW(DTYPE, sum, T, W, NULL, REDUCE_ROUNDS))

#define ROWS_OF_CLASS(DTYPE, NAME, TORCH, MXNET, MPI, CLASS, ...) CLASS##_ROWS(DTYPE, __VA_ARGS__)
DTYPES(ROWS_OF_CLASS)

static const struct reduce_kernels *const ROWS_OF[] = {
#define ROWS_OF_DTYPE(DTYPE, ...) [HVD_##DTYPE] = rows_##DTYPE,
    DTYPES(ROWS_OF_DTYPE)};

const struct reduce_kernels *reduce_kernels(hvd_dtype dtype, hvd_op op) {
    return &ROWS_OF[dtype][op];
}

/* Bytes of the accumulators of a block. They must fit into the L1 cache. */
enum { BLOCK = 4096 };

void reduce_all(const struct reduce_kernels *k, void *out, const char *const *in, int inputs,
                size_t n, double scale, struct reduce_final final) {
    if (inputs == 2 && k->pair) {
        k->pair(out, in[0], in[1], n, scale, final);
        return;
    }
    _Alignas(64) unsigned char sum[BLOCK], scaled[BLOCK];
    size_t block = BLOCK / k->wide;
    for (size_t at = 0; at < n; at += block) {
        size_t length = n - at < block ? n - at : block;
        k->widen(sum, in[0] + at * k->size, length, scale);
        for (int i = 1; i < inputs; i++) {
            const char *next = in[i] + at * k->size;
            if (scale == 1) {
                k->combine(sum, next, length);
            } else {
                k->widen(scaled, next, length, scale);
                k->combine_wide(sum, sum, scaled, length);
            }
        }
        k->narrow((char *)out + at * k->result, sum, length, final);
    }
}

/* ---- kernels over whole vectors ---- */

/* number of sums that grow in parallel: the compiler vectorizes across the sums, and each sum has a
 * fixed order of additions */
enum { ACCUMULATORS = 8 };

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
        double aa[ACCUMULATORS] = {0}, bb[ACCUMULATORS] = {0}, ab[ACCUMULATORS] = {0};             \
        size_t i = 0;                                                                              \
        for (; i + ACCUMULATORS <= n; i += ACCUMULATORS)                                           \
            for (size_t l = 0; l < ACCUMULATORS; l++)                                              \
                ADD_PRODUCTS(l, (double)x[i + l], (double)y[i + l]);                               \
        for (; i < n; i++) ADD_PRODUCTS(i % ACCUMULATORS, (double)x[i], (double)y[i]);             \
        struct reduce_dots sums = {0, 0, 0};                                                       \
        for (size_t l = 0; l < ACCUMULATORS; l++)                                                  \
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
