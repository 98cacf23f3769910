/* Reduce kernels: sums of arrays, element by element, one row of functions a dtype.
 *
 * Layer 1, pure. Sums are kept in an accumulator type wide enough that one rounding, or one
 * division, at the end is all that happens: float16 and bfloat16 in float32, 8-bit integers in
 * int32, int32 in int64. The other dtypes are their own accumulators, and bool sums by logical or.
 * Integers wrap as NumPy's do; their average and their scaling truncate toward zero. All loops are
 * left to the compiler to vectorise, so arrays need no more alignment than their element. */
#ifndef HVDLITE_REDUCE_H
#define HVDLITE_REDUCE_H

#include "types.h"

/* What the sum is multiplied and divided by before it is stored. */
struct reduce_final {
    double scale;
    int64_t divisor; /* the number of ranks for an average, else 1 */
};

/* n counts elements; arrays may be the same, but must not overlap otherwise. */
struct reduce_kernels {
    size_t size; /* bytes of an element */
    size_t wide; /* bytes of an accumulator; equal to size: the dtype is its own accumulator */
    size_t sum;  /* bytes of a sum as narrow stores it: those of an element, but for codec.h's */
    void (*widen)(void *wide, const void *in, size_t n, double scale);   /* wide = in * scale */
    void (*add)(void *wide, const void *in, size_t n);                   /* wide += in */
    void (*add_wide)(void *out, const void *a, const void *b, size_t n); /* out = a + b, all wide */
    void (*narrow)(void *out, const void *wide, size_t n, struct reduce_final final);
};

const struct reduce_kernels *reduce_kernels(hvd_dtype dtype);

/* wide += in * scale; `scratch` is as large as wide. */
void reduce_add(const struct reduce_kernels *k, void *wide, const void *in, size_t n, double scale,
                void *scratch);

#endif
