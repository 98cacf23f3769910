/* Reduce kernels: arrays combined element by element, one row of functions a dtype and operation.
 *
 * Results are kept in an accumulator type wide enough that one rounding, or one
 * division, at the end is all that happens: float16 and bfloat16 in float32, 8- and 16-bit integers
 * in int32, int32 in int64. The other dtypes are their own accumulators. For bool Sum and Max are
 * logical or, Min and Product logical and. Integers wrap as NumPy's do; their average and their
 * scaling truncate toward zero. NaN wins over any number in Min and Max, as in NumPy's. All loops
 * are left to the compiler to vectorise, so arrays need no more alignment than their element. */
#ifndef HVDLITE_KERNELS_REDUCE_H
#define HVDLITE_KERNELS_REDUCE_H

#include "base/types.h"

/* What the result is multiplied and divided by before it is stored. */
struct reduce_final {
    double scale;
    int64_t divisor; /* the number of ranks for an average, else 1 */
};

/* n counts elements; arrays may be the same, but must not overlap otherwise. op is the operation. */
struct reduce_kernels {
    size_t size; /* bytes of an element */
    size_t wide; /* bytes of an accumulator; equal to size: the dtype is its own accumulator */
    size_t sum; /* bytes of a result, as narrow stores it: those of an element, but for codec.h's */
    void (*widen)(void *wide, const void *in, size_t n, double scale); /* wide = in * scale */
    void (*combine)(void *wide, const void *in, size_t n);             /* wide = wide op in */
    void (*combine_wide)(void *out, const void *a, const void *b,
                         size_t n); /* out = a op b, all wide */
    void (*narrow)(void *out, const void *wide, size_t n, struct reduce_final final);
    /* What reduce_all does of two inputs, in one pass; NULL: not for this dtype and op */
    void (*pair)(void *out, const void *a, const void *b, size_t n, double scale,
                 struct reduce_final final);
};

/* Average is Sum with a divisor. Adasum is none of these; its row is Sum's, for its accumulator. */
const struct reduce_kernels *reduce_kernels(hvd_dtype dtype, hvd_op op);

/* Sums over all elements of two vectors of accumulators, kept in double. */
struct reduce_dots {
    double aa, bb, ab;
};

/* Of floating-point dtypes; of the same vectors the same bits on every machine. */
struct reduce_dots reduce_dots(const struct reduce_kernels *k, const void *a, const void *b,
                               size_t n);
/* out = x a + y b, all wide, computed in double. */
void reduce_blend(const struct reduce_kernels *k, void *out, double x, const void *a, double y,
                  const void *b, size_t n);

/* out = final((in[0] * scale) op (in[1] * scale) op ...), in this order; out may be one of them. */
void reduce_all(const struct reduce_kernels *k, void *out, const char *const *in, int inputs,
                size_t n, double scale, struct reduce_final final);

/* wide = wide op (in * scale); `scratch` is as large as wide. */
void reduce_combine(const struct reduce_kernels *k, void *wide, const void *in, size_t n,
                    double scale, void *scratch);

#endif
