#include "reduce.h"

#include "fast.h"
#include "half.h"

#include <stdbool.h>
#include <string.h>

/* How one element becomes an accumulator and back. */
#define SAME(x) (x)
#define OR(a, b) ((a) | (b))
#define PLUS(a, b) ((a) + (b))
#define WRAPPED(a, b)                                                                              \
    ((int64_t)((uint64_t)(a) + (uint64_t)(b))) /* signed overflow is undefined in C */
#define WRAPPED32(a, b) ((int32_t)((uint32_t)(a) + (uint32_t)(b)))

/* Widening and adding. DTYPE names the functions; T is its element, W its accumulator. */
#define KERNELS(DTYPE, T, W, WIDE_OF, ADD)                                                         \
    FAST static void add_##DTYPE(void *wide, const void *in, size_t n) {                           \
        W *w = wide;                                                                               \
        const T *x = in;                                                                           \
        for (size_t i = 0; i < n; i++) w[i] = (W)ADD(w[i], (W)WIDE_OF(x[i]));                      \
    }                                                                                              \
    FAST static void add_wide_##DTYPE(void *out, const void *a, const void *b, size_t n) {         \
        W *o = out;                                                                                \
        const W *x = a, *y = b;                                                                    \
        for (size_t i = 0; i < n; i++) o[i] = (W)ADD(x[i], y[i]);                                  \
    }

/* Floating point: scale and divisor are one factor, rounded once to the accumulator. */
#define FLOAT_KERNELS(DTYPE, T, W, WIDE_OF, NARROW_OF)                                             \
    KERNELS(DTYPE, T, W, WIDE_OF, PLUS)                                                            \
    FAST static void widen_##DTYPE(void *wide, const void *in, size_t n, double scale) {           \
        W *w = wide, factor = (W)scale;                                                            \
        const T *x = in;                                                                           \
        for (size_t i = 0; i < n; i++) w[i] = (W)WIDE_OF(x[i]) * factor;                           \
    }                                                                                              \
    FAST static void narrow_##DTYPE(void *out, const void *wide, size_t n,                         \
                                    struct reduce_final final) {                                   \
        T *o = out;                                                                                \
        const W *w = wide;                                                                         \
        W factor = (W)(final.scale / (double) final.divisor);                                      \
        for (size_t i = 0; i < n; i++) o[i] = (T)NARROW_OF(w[i] * factor);                         \
    }

/* Integers: exact unless scaled, and scaled in double; out of range wraps instead of being
 * undefined. */
static inline int64_t truncated(double x) {
    if (x != x) return 0;
    if (x >= 0x1p63) return INT64_MAX;
    return x < -0x1p63 ? INT64_MIN : (int64_t)x;
}

#define INTEGER_KERNELS(DTYPE, T, W, ADD)                                                          \
    KERNELS(DTYPE, T, W, SAME, ADD)                                                                \
    FAST static void widen_##DTYPE(void *wide, const void *in, size_t n, double scale) {           \
        W *w = wide;                                                                               \
        const T *x = in;                                                                           \
        if (scale == 1)                                                                            \
            for (size_t i = 0; i < n; i++) w[i] = (W)x[i];                                         \
        else                                                                                       \
            for (size_t i = 0; i < n; i++) w[i] = (W)truncated((double)x[i] * scale);              \
    }                                                                                              \
    FAST static void narrow_##DTYPE(void *out, const void *wide, size_t n,                         \
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
INTEGER_KERNELS(uint8, uint8_t, int32_t, WRAPPED32)
INTEGER_KERNELS(int8, int8_t, int32_t, WRAPPED32)
INTEGER_KERNELS(int32, int32_t, int64_t, WRAPPED)
INTEGER_KERNELS(int64, int64_t, int64_t, WRAPPED)
KERNELS(bool, uint8_t, uint8_t, SAME, OR)

/* Logical or: any byte but 0 is true; scaling and averaging were refused before (request_check). */
static void widen_bool(void *wide, const void *in, size_t n, double scale) {
    uint8_t *w = wide;
    const uint8_t *x = in;
    (void)scale;
    for (size_t i = 0; i < n; i++) w[i] = x[i] != 0;
}

static void narrow_bool(void *out, const void *wide, size_t n, struct reduce_final final) {
    (void) final;
    widen_bool(out, wide, n, 1);
}

#define ROW(DTYPE, T, W)                                                                           \
    {.size = sizeof(T),                                                                            \
     .wide = sizeof(W),                                                                            \
     .sum = sizeof(T),                                                                             \
     .widen = widen_##DTYPE,                                                                       \
     .add = add_##DTYPE,                                                                           \
     .add_wide = add_wide_##DTYPE,                                                                 \
     .narrow = narrow_##DTYPE}

const struct reduce_kernels *reduce_kernels(hvd_dtype dtype) {
    static const struct reduce_kernels ROWS[HVD_DTYPES] = {
        [HVD_UINT8] = ROW(uint8, uint8_t, int32_t),
        [HVD_INT8] = ROW(int8, int8_t, int32_t),
        [HVD_INT32] = ROW(int32, int32_t, int64_t),
        [HVD_INT64] = ROW(int64, int64_t, int64_t),
        [HVD_FLOAT16] = ROW(float16, uint16_t, float),
        [HVD_BFLOAT16] = ROW(bfloat16, uint16_t, float),
        [HVD_FLOAT32] = ROW(float32, float, float),
        [HVD_FLOAT64] = ROW(float64, double, double),
        [HVD_BOOL] = ROW(bool, uint8_t, uint8_t),
    };
    return &ROWS[dtype];
}

void reduce_add(const struct reduce_kernels *k, void *wide, const void *in, size_t n, double scale,
                void *scratch) {
    if (scale == 1) {
        k->add(wide, in, n);
    } else {
        k->widen(scratch, in, n, scale);
        k->add_wide(wide, wide, scratch, n);
    }
}
