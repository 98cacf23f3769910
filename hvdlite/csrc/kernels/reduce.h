/* Reduce kernels combine arrays element by element. The table has a row of functions for each
 * dtype and operation.
 *
 * Accumulators are wide enough that a result is rounded, or divided, only once, at the end: float16
 * and bfloat16 in float32, 8- and 16-bit integers in int32, int32 in int64. The other dtypes are
 * their own accumulators. bool: Sum and Max are logical or, Min and Product logical and. Integers
 * wrap as in NumPy; their averages and scaled values truncate toward zero. In Min and Max NaN wins
 * over any number, as in NumPy. The compiler vectorises all loops: arrays need only the alignment
 * of elements. */
#ifndef HVDLITE_KERNELS_REDUCE_H
#define HVDLITE_KERNELS_REDUCE_H

#include "base/types.h"

/* A result is multiplied and divided by these before it is stored. */
struct reduce_final {
    double scale;
    int64_t divisor; /* the number of ranks for an average, else 1 */
};

/* What happens to a result if partial results are stored in the dtype, narrower than its
 * accumulator. */
enum reduce_partial {
    REDUCE_WIDE_ONLY, /* its error has no bound: a partial product may overflow */
    REDUCE_ROUNDS,    /* it is rounded once more: sums of floating-point numbers */
    REDUCE_WRAPS      /* nothing, if unscaled: integers wrap, truth values stay */
};

/* n: number of elements. An output may be the same array as an input, but must not overlap it
 * otherwise. */
struct reduce_kernels {
    size_t size;   /* bytes of an element */
    size_t wide;   /* bytes of an accumulator; equals size if the dtype is its own accumulator */
    size_t result; /* bytes of a result, which narrow stores */
    enum reduce_partial partial;
    void (*widen)(void *wide, const void *in, size_t n, double scale); /* wide = in * scale */
    void (*combine)(void *wide, const void *in, size_t n);             /* wide = wide op in */
    void (*combine_wide)(void *out, const void *a, const void *b,
                         size_t n); /* out = a op b, all accumulators */
    void (*narrow)(void *out, const void *wide, size_t n, struct reduce_final final);
    /* reduce_all of two inputs in one pass; NULL: missing for this dtype and op */
    void (*pair)(void *out, const void *a, const void *b, size_t n, double scale,
                 struct reduce_final final);
};

/* Average has the row of Sum and a divisor. Adasum also has the row of Sum, but uses only its
 * accumulator. */
const struct reduce_kernels *reduce_kernels(hvd_dtype dtype, hvd_op op);

/* The dot products a.a, b.b and a.b of two vectors of accumulators, computed in double. */
struct reduce_dots {
    double aa, bb, ab;
};

/* Floating-point dtypes only. The same vectors give the same bits on every machine. */
struct reduce_dots reduce_dots(const struct reduce_kernels *k, const void *a, const void *b,
                               size_t n);
/* out = x a + y b, all accumulators, computed in double. */
void reduce_blend(const struct reduce_kernels *k, void *out, double x, const void *a, double y,
                  const void *b, size_t n);

/* out = final((in[0] * scale) op (in[1] * scale) op ...), in this order; out may be an input. */
void reduce_all(const struct reduce_kernels *k, void *out, const char *const *in, int inputs,
                size_t n, double scale, struct reduce_final final);

#endif
