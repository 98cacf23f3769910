#include "kernels/codec.h"

#include "base/floats.h"
#include "kernels/half.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* bytes of the extra first word, which marks an infinity or a NaN */
static const size_t FIRST = sizeof(uint32_t);

bool codec_is_cast(struct codec c) {
    return c.kind == HVD_CODEC_FLOAT16 || c.kind == HVD_CODEC_BFLOAT16;
}

static const struct reduce_kernels *cast_kernels(struct codec c) {
    return reduce_kernels(c.kind == HVD_CODEC_FLOAT16 ? HVD_FLOAT16 : HVD_BFLOAT16, HVD_SUM);
}

int codec_check(struct codec c, const char *name, size_t n, hvd_error *err) {
    double x = c.parameter;
    if (c.kind < 0 || c.kind >= HVD_CODECS)
        return error_set(err, HVD_INVALID, "tensor '%s': unknown codec %d", name, c.kind);
    if (c.kind == HVD_CODEC_2BIT && !(x > 0 && (float)x > 0 && isfinite((float)x)))
        return error_set(err, HVD_INVALID,
                         "tensor '%s': the threshold of compression '2bit' is %g: expected a "
                         "finite float32 above 0",
                         name, x);
    if (c.kind == HVD_CODEC_1BIT && !isfinite((float)x))
        return error_set(
            err, HVD_INVALID,
            "tensor '%s': the threshold of compression '1bit' is %g: expected a finite number",
            name, x);
    if (c.kind == HVD_CODEC_TOPK && !(x > 0 && x <= 1))
        return error_set(
            err, HVD_INVALID,
            "tensor '%s': the ratio of compression 'topk' is %g: expected above 0 and at most 1",
            name, x);
    if (c.kind == HVD_CODEC_TOPK && n > UINT32_MAX)
        return error_set(err, HVD_UNSUPPORTED,
                         "tensor '%s' has %zu values: expected fewer than 2^32 for topk", name, n);
    return HVD_OK;
}

void codec_text(struct codec c, char *text, size_t size) {
    bool has_parameter = c.kind != HVD_CODEC_NONE && !codec_is_cast(c);
    snprintf(text, size, has_parameter ? "%s(%.9g)" : "%s", codec_name(c.kind), c.parameter);
}

size_t codec_bytes(struct codec c, size_t n) {
    if (codec_is_cast(c)) return n * sizeof(uint16_t);
    if (c.kind == HVD_CODEC_TOPK)
        return FIRST + codec_topk_count(c.parameter, n) * (sizeof(uint32_t) + sizeof(float));
    return FIRST + codec_bits_words(c.kind, n) * sizeof(uint32_t);
}

/* ---- encoding ---- */

SIMD static bool all_finite(const float *restrict in, float scale, const float *restrict residual,
                            size_t n) {
    const uint32_t EXPONENT = 0x7f800000u;
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (bits_of_float(residual[i] + in[i] * scale) & EXPONENT) == EXPONENT;
    return !bad;
}

bool codec_finite(const struct codec_input *in, struct codec_part part) {
    size_t at = part.begin;
    return codec_is_cast(in->codec) ||
           all_finite(in->values + at, (float)in->scale, in->residual + at, part.end - at);
}

int codec_encode(const struct codec_input *in, bool finite, struct codec_part part,
                 hvd_error *err) {
    struct codec c = in->codec;
    size_t at = part.begin, n = part.end - at;
    const float *values = in->values + at;
    if (codec_is_cast(c)) {
        cast_kernels(c)->narrow((uint16_t *)in->message + at, values, n,
                                (struct reduce_final){in->scale, 1});
        return HVD_OK;
    }
    bool topk = c.kind == HVD_CODEC_TOPK;
    uint32_t *first = in->message;
    uint32_t *words = first + 1 + (topk ? 0 : codec_bits_words(c.kind, at));
    bool leads = at == 0 && (n > 0 || part.n == 0); /* true for exactly one part */
    if (leads) *first = finite ? 0 : UINT32_MAX;
    if (!finite)
        memset(words, 0, codec_bytes(c, n) - FIRST);
    else if (topk)
        return codec_topk_encode(c, values, (float)in->scale, in->residual, n, words, err);
    else
        codec_bits_encode(c, values, (float)in->scale, in->residual + at, n, words);
    return HVD_OK;
}

/* ---- decoding ---- */

static void fill_with_nan(float *out, size_t n) {
    for (size_t i = 0; i < n; i++) out[i] = NAN;
}

static bool any_marked(const char *messages, size_t stride, int p) {
    uint32_t marks = 0, mark;
    for (int r = 0; r < p; r++, marks |= mark) memcpy(&mark, messages + (size_t)r * stride, FIRST);
    return marks != 0;
}

void codec_decode(struct codec c, const void *messages, size_t stride, struct codec_sum spec,
                  float *out, struct codec_part part) {
    const char *first = (const char *)messages + FIRST;
    size_t at = part.begin, n = part.end - at;
    if (any_marked(messages, stride, spec.ranks))
        fill_with_nan(out + at, n);
    else if (c.kind == HVD_CODEC_TOPK)
        codec_topk_decode(c, first, stride, spec, out, part);
    else
        codec_bits_decode(c, first + codec_bits_words(c.kind, at) * sizeof(uint32_t), stride, spec,
                          out + at, n);
}

const struct reduce_kernels *codec_kernels(struct codec c, int ranks) {
    if (codec_is_cast(c)) return cast_kernels(c);
    return c.kind == HVD_CODEC_TOPK ? NULL : codec_bits_kernels(c.kind, ranks);
}

/* The kernels have also added the extra first words of the messages, which mark NaN. */
void codec_decode_sum(struct codec c, const void *sum, struct codec_sum spec, float *out,
                      struct codec_part part) {
    const struct reduce_kernels *k = codec_kernels(c, spec.ranks);
    size_t at = part.begin, n = part.end - at;
    if (codec_is_cast(c)) {
        k->widen(out + at, (const uint16_t *)sum + at, n, 1);
        return;
    }
    int16_t marks = 0;
    memcpy(&marks, sum, k->result / codec_bits_values(c.kind));
    if (marks)
        fill_with_nan(out + at, n);
    else
        codec_bits_decode_sum(c, (const char *)sum + (1 + codec_bits_words(c.kind, at)) * k->result,
                              spec, out + at, n);
}
