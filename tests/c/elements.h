/* The reference for allreduces of every dtype, computed with doubles.
 *
 * Inputs are small whole numbers: sums are exact in every accumulator, so results must match
 * exactly. */
#ifndef HVDLITE_ELEMENTS_H
#define HVDLITE_ELEMENTS_H

#include "base/types.h"
#include "kernels/half.h"
#include "random.h"

#include <math.h>

union element {
    uint64_t whole; /* little-endian: smaller integers are its first bytes */
    uint8_t u8;
    int8_t i8;
    int16_t i16;
    uint16_t u16;
    int32_t i32;
    uint32_t u32;
    int64_t i64;
    float f;
    double d;
};

/* Reads an element as a double; element_put writes one. The memory may be unaligned. */
static inline double element_get(int dtype, const void *data, size_t i) {
    union element x = {0};
    memcpy(&x, (const unsigned char *)data + i * dtype_size(dtype), dtype_size(dtype));
    switch (dtype) {
    case HVD_INT8: return x.i8;
    case HVD_INT16: return x.i16;
    case HVD_INT32: return x.i32;
    case HVD_INT64: return (double)x.i64;
    case HVD_UINT16: return x.u16;
    case HVD_UINT32: return x.u32;
    case HVD_UINT64: return (double)x.whole;
    case HVD_FLOAT16: return (double)float_of_half(x.u16);
    case HVD_BFLOAT16: return (double)float_of_bfloat(x.u16);
    case HVD_FLOAT32: return (double)x.f;
    case HVD_FLOAT64: return x.d;
    default: return x.u8; /* HVD_UINT8, HVD_BOOL */
    }
}

/* Writes an element; integers wrap. Products of the tests' integers stay below 2^63. */
static inline void element_put(int dtype, void *data, size_t i, double value) {
    union element x = {0};
    switch (dtype) {
    case HVD_FLOAT16: x.u16 = half_of_float((float)value); break;
    case HVD_BFLOAT16: x.u16 = bfloat_of_float((float)value); break;
    case HVD_FLOAT32: x.f = (float)value; break;
    case HVD_FLOAT64: x.d = value; break;
    case HVD_BOOL: x.u8 = value != 0; break;
    default: x.whole = (uint64_t)(int64_t)value;
    }
    memcpy((unsigned char *)data + i * dtype_size(dtype), &x, dtype_size(dtype));
}

struct scaling {
    int op; /* an hvd_op */
    double prescale, postscale;
};

/* A row of a table of scalings: an op without scales. */
#define UNSCALED(OP, ...) {HVD_##OP, 1, 1},

/* Returns an element of a rank's input: -100 .. 100 (0 .. 200 if unsigned, 0 or 1 for bool). For
 * a product: small factors, many of them 1, so that the product is exact. */
static inline double sample(int dtype, int op, int rank, size_t i) {
    static const double FACTORS[] = {1, 1, 1, -1, 2, -2, 0.5, -0.5, 4, 0};
    static const double WHOLE_FACTORS[] = {1, 1, 1, 3, 2, 5, 1, 7, 1, 0};
    int value = (int)(mixed((uint64_t)i * 16 + (uint64_t)rank) % 201);
    if (dtype == HVD_BOOL) return value % 7 == 0;
    if (op == HVD_PRODUCT)
        return (dtype_is_float(dtype) ? FACTORS : WHOLE_FACTORS)[value * 7 % 201 % 10];
    return dtype_name(dtype)[0] == 'u' ? value : value - 100;
}

/* Returns a op b. */
static inline double combined(int dtype, int op, double a, double b) {
    if (op == HVD_MIN) return fmin(a, b);
    if (op == HVD_MAX) return fmax(a, b);
    if (op == HVD_PRODUCT) return a * b;
    return dtype == HVD_BOOL ? fmax(a, b) : a + b;
}

/* Returns element i of the allreduce of all ranks' samples, as reduce.h specifies. */
static inline double reduced_sample(int dtype, int ranks, struct scaling how, size_t i) {
    double result = 0;
    for (int r = 0; r < ranks; r++) {
        double x = sample(dtype, how.op, r, i) * how.prescale;
        if (!dtype_is_float(dtype)) x = trunc(x);
        result = r ? combined(dtype, how.op, result, x) : x;
    }
    result = result * how.postscale / (how.op == HVD_AVERAGE ? ranks : 1);
    return dtype_is_float(dtype) ? result : trunc(result);
}

/* Returns a result's largest allowed error: float32 and float64 averages round 1 / divisor. */
static inline double sample_tolerance(int dtype, double expected) {
    if (dtype == HVD_FLOAT32) return fabs(expected) * 0x1p-22;
    return dtype == HVD_FLOAT64 ? fabs(expected) * 0x1p-51 : 0;
}

#endif
