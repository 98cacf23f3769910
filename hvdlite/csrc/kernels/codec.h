/* Codecs: gradients as messages of fewer bits, and sums of all ranks' messages back as float32.
 *
 * float16 and bfloat16 round every value. The other codecs carry what a message leaves
 * out, the residual, over to the next one (error feedback: Seide et al., "1-bit stochastic gradient
 * descent", Interspeech 2014), so that it comes late but is not lost. r is residual + gradient:
 *
 *   2bit   r >= T is sent as +T, r <= -T as -T, else 0; 16 values a word, bits 11, 10 and 00, the first
 *          in the highest bits of the first byte: as MXNet does it (gradient_compression-inl.h)
 *   1bit   r > T is sent as +1, else -1; 32 values a word, the first highest: as MXNet 2.0 does it
 *   topk   the k = ceil(ratio * n) values of largest magnitude, of equal ones the first, as k indices
 *          of 32 bits, in rising order, and k float32
 *
 * Their messages begin with one word: 0, or all ones when r has an infinity or NaN. Then the residual
 * stays as it was, and all ranks decode NaN everywhere: who skips such a step skips it on all ranks. */
#ifndef HVDLITE_KERNELS_CODEC_H
#define HVDLITE_KERNELS_CODEC_H

#include "base/error.h"
#include "kernels/reduce.h"

#include <stdbool.h>

struct codec {
    int32_t kind;     /* hvd_codec */
    double parameter; /* 2bit, 1bit: T; topk: ratio; else 0 */
};

/* A number that can't be right; the error names the tensor. n counts values, here as below. */
int codec_check(struct codec c, const char *name, size_t n, hvd_error *err);

/* "2bit(0.5)" */
void codec_text(struct codec c, char *text, size_t size);

bool codec_is_cast(struct codec c); /* float16 or bfloat16: no residual, no first word */

size_t codec_bytes(struct codec c, size_t n); /* of a message */

/* Encodes in * scale; neither array may overlap another. Fails only without memory (topk). */
int codec_encode(struct codec c, const float *in, double scale, float *residual, size_t n,
                 void *message, hvd_error *err);

/* A message of zero bytes is what a rank that has joined brings: zeros, for 1bit nothing at all. */
struct codec_sum {
    int ranks;        /* whose messages there are */
    int contributors; /* those of them that have brought data */
    double factor;    /* the sum is multiplied by */
};

/* Adds the ranks' messages, `stride` bytes from one to the next; not for casts. Equal messages give
 * equal bits. 2bit and 1bit count exactly and round once, to float32. */
void codec_decode(struct codec c, const void *messages, size_t stride, struct codec_sum how,
                  float *out, size_t n);

/* Kernels that add the messages of so many ranks, word by word; a cast's: number by number. NULL: this
 * codec has none. */
const struct reduce_kernels *codec_kernels(struct codec c, int ranks);

/* What codec_decode does, from the sum that those have made of all messages. A cast's comes with its
 * factor in it. */
void codec_decode_sum(struct codec c, const void *sum, struct codec_sum how, float *out, size_t n);

/* ---- one family a file ---- */

/* 2bit and 1bit: words, without the first. */
size_t codec_bits_values(int kind); /* in a word */
size_t codec_bits_words(int kind, size_t n);
void codec_bits_encode(struct codec c, const float *in, float scale, float *residual, size_t n,
                       uint32_t *words);
void codec_bits_decode(struct codec c, const char *words, size_t stride, struct codec_sum how,
                       float *out, size_t n);
const struct reduce_kernels *codec_bits_kernels(int kind, int ranks);
void codec_bits_decode_sum(struct codec c, const void *sum, struct codec_sum how, float *out,
                           size_t n);

/* topk: the k indices and then the k values. */
size_t codec_topk_count(double ratio, size_t n);
int codec_topk_encode(struct codec c, const float *in, float scale, float *residual, size_t n,
                      uint32_t *pairs, hvd_error *err);
void codec_topk_decode(struct codec c, const char *pairs, size_t stride, struct codec_sum how,
                       float *out, size_t n);

#endif
