/* Kernels that combine arrays element by element; a table has one row of functions for each dtype
 * and operation.
 *
 * Accumulators are so wide that a result is rounded or divided only once, at the end: float32 for
 * float16 and bfloat16, int32 for 8- and 16-bit integers, int64 for 32-bit integers. All other
 * dtypes are their own accumulators. For bool, Sum and Max are logical or, Min and Product logical
 * and. As in NumPy, integers wrap, and Min and Max return NaN if an input is NaN. Averages and
 * scaled values of integers truncate toward zero. The compiler vectorizes all loops. Arrays need
 * only the alignment of their elements. */
#ifndef HVDLITE_KERNELS_REDUCE_H
#define HVDLITE_KERNELS_REDUCE_H

#include "base/types.h"

/* Before a result is stored, it is multiplied by `scale` and divided by `divisor`. */
struct reduce_final {
    double scale;
    int64_t divisor; /* the number of ranks for an average, else 1 */
};

/* How the final result changes if partial results are stored in the dtype instead of its wider
 * accumulator. */
enum reduce_partial {
    REDUCE_WIDE_ONLY, /* it may be far off, because the product of some inputs may overflow */
    REDUCE_ROUNDS,    /* sums of floating-point numbers are rounded once more */
    REDUCE_WRAPS      /* integers wrap, so only results that are scaled change */
};

/* The kernels of one dtype and op. n: number of elements. An output may be the same array as an
 * input, but may not overlap an input otherwise. */
struct reduce_kernels {
    size_t size; /* bytes of an element */
    /* bytes of an accumulator; equal to `size` if the dtype is its own accumulator */
    size_t wide;
    size_t result; /* bytes of a result that `narrow` stores */
    enum reduce_partial partial;
    void (*widen)(void *wide, const void *in, size_t n, double scale); /* wide = in * scale */
    void (*combine)(void *wide, const void *in, size_t n);             /* wide = wide op in */
    void (*combine_wide)(void *out, const void *a, const void *b,
                         size_t n); /* out = a op b, all accumulators */
    void (*narrow)(void *out, const void *wide, size_t n, struct reduce_final final);
    /* reduce_all of two inputs in one pass; NULL: not available for this dtype and op */
    void (*pair)(void *out, const void *a, const void *b, size_t n, double scale,
                 struct reduce_final final);
};

/* Returns the kernels for the dtype and op. Average uses the kernels of Sum and a divisor. Adasum
 * has the kernels of Sum, but uses only those that convert to and from the accumulator. */
const struct reduce_kernels *reduce_kernels(hvd_dtype dtype, hvd_op op);

/* The dot products a.a, b.b and a.b of two vectors of accumulators, computed in double. */
struct reduce_dots {
    double aa, bb, ab;
};

/* For floating-point dtypes only. The same vectors give the same bits on every machine. */
struct reduce_dots reduce_dots(const struct reduce_kernels *k, const void *a, const void *b,
                               size_t n);
/* Computes out = x a + y b in double; all three are accumulators. */
void reduce_blend(const struct reduce_kernels *k, void *out, double x, const void *a, double y,
                  const void *b, size_t n);

/* Computes out = final((in[0] * scale) op (in[1] * scale) op ...) in this order; out may be an
 * input. */
void reduce_all(const struct reduce_kernels *k, void *out, const char *const *in, int inputs,
                size_t n, double scale, struct reduce_final final);

#endif
