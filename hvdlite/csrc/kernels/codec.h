/* Codecs encode gradients in fewer bits, and decode the sum of all ranks' messages to float32.
 *
 * float16 and bfloat16 round every value. The other codecs keep a residual, the part that the
 * message leaves out, and add the residual to the next gradient. So this part is delayed but not
 * lost (error feedback: Seide et al., "1-bit stochastic gradient descent", Interspeech 2014). With
 * r = residual + gradient and the threshold T:
 *
 *   2bit   sends +T for r >= T, -T for r <= -T, else 0; 16 values a word, bits 11, 10, 00, the
 *          first value in the highest bits of the first byte, as in MXNet's
 *          gradient_compression-inl.h
 *   1bit   sends +1 for r > T, else -1; 32 values a word, the first value in the highest bit, as in
 *          MXNet 2.0
 *   topk   sends the k = ceil(ratio * n) values of largest magnitude (the first values of equal
 *          magnitude): k indices of 32 bits in rising order, then k float32
 *
 * The messages of 2bit, 1bit and topk begin with one extra word. This word is all ones if r has an
 * infinity or a NaN, else 0. If it is all ones, the sender's residual stays unchanged, and every
 * rank decodes the sum to NaN, so that all ranks skip the same step. */
#ifndef HVDLITE_KERNELS_CODEC_H
#define HVDLITE_KERNELS_CODEC_H

#include "base/error.h"
#include "kernels/reduce.h"

struct codec {
    int32_t kind;     /* an hvd_codec */
    double parameter; /* 2bit, 1bit: threshold; topk: part of the values that is sent; else 0 */
};

/* Checks the parameter; the error names the tensor. In this file n is a number of values. */
int codec_check(struct codec c, const char *name, size_t n, hvd_error *err);

/* Writes the codec's description: "2bit(0.5)". */
void codec_text(struct codec c, char *text, size_t size);

/* Returns true for float16 and bfloat16, which have no residual and no extra first word. */
bool codec_is_cast(struct codec c);

size_t codec_bytes(struct codec c, size_t n); /* returns the bytes of a message of n values */

/* The values from `begin` to `end` of a tensor of n values. Threads may work on different parts at
 * the same time, if each part begins at a multiple of 32 values, the most that a word encodes. */
struct codec_part {
    size_t begin, end, n;
};

static inline struct codec_part codec_whole(size_t n) { return (struct codec_part){0, n, n}; }

/* A tensor to encode. The arrays must not overlap. */
struct codec_input {
    struct codec codec;
    const float *values;
    double scale;    /* multiplies the values */
    float *residual; /* float16, bfloat16: not used */
    void *message;   /* codec_bytes(n) bytes */
};

/* Returns whether all sums of the residual and the scaled values are finite (an overflow gives
 * infinity). Returns true for float16 and bfloat16, which can encode infinities and NaN. */
bool codec_finite(const struct codec_input *in, struct codec_part part);

/* Encodes a part of the tensor; with topk, the part must be the whole tensor. finite: the result of
 * codec_finite for the whole tensor. Fails only if memory for topk is short. */
int codec_encode(const struct codec_input *in, bool finite, struct codec_part part, hvd_error *err);

/* How to decode a sum of messages. A rank that has joined sends only zero bytes, and adds nothing
 * to the sum. In 1bit a zero bit means -1, so 1bit needs the number of ranks with data. */
struct codec_sum {
    int ranks;        /* number of messages */
    int contributors; /* number of ranks with data; the others have joined */
    double factor;    /* multiplies the sum */
};

/* Decodes and adds the ranks' messages, which are `stride` bytes apart; not for float16 and
 * bfloat16. Equal messages give equal bits. 2bit and 1bit count exactly and round once, to
 * float32. */
void codec_decode(struct codec c, const void *messages, size_t stride, struct codec_sum spec,
                  float *out, struct codec_part part);

/* Returns the kernels that add the messages of `ranks` ranks word by word (float16, bfloat16:
 * number by number). NULL: there are no such kernels. */
const struct reduce_kernels *codec_kernels(struct codec c, int ranks);

/* Decodes a sum that the kernels of codec_kernels have computed. For float16 and bfloat16, the
 * kernels have already multiplied the sum by the factor. */
void codec_decode_sum(struct codec c, const void *sum, struct codec_sum spec, float *out,
                      struct codec_part part);

/* ---- one file for each family of codecs ---- */

/* 2bit and 1bit: the words after the extra first word. */
size_t codec_bits_values(int kind); /* number of values in a word */
size_t codec_bits_words(int kind, size_t n);
void codec_bits_encode(struct codec c, const float *in, float scale, float *residual, size_t n,
                       uint32_t *words);
void codec_bits_decode(struct codec c, const char *words, size_t stride, struct codec_sum spec,
                       float *out, size_t n);
const struct reduce_kernels *codec_bits_kernels(int kind, int ranks);
void codec_bits_decode_sum(struct codec c, const void *sum, struct codec_sum spec, float *out,
                           size_t n);

/* topk: k indices in rising order, then k values. */
size_t codec_topk_count(double ratio, size_t n);
int codec_topk_encode(struct codec c, const float *in, float scale, float *residual, size_t n,
                      uint32_t *pairs, hvd_error *err);
void codec_topk_decode(struct codec c, const char *pairs, size_t stride, struct codec_sum spec,
                       float *out, struct codec_part part);

#endif
