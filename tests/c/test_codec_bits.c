/* 2bit and 1bit against slow models of their rules: words, residuals and sums, bit by bit. */
#include "codec_case.h"

enum { STEPS = 6 };

static const struct codec TWO = {HVD_CODEC_2BIT, 0.5}, ONE = {HVD_CODEC_1BIT, 0};

/* ---- models: one value at a time ---- */

/* Quantises r, which becomes the residual; returns the code. */
typedef uint8_t quantise(float *r, float threshold);

static uint8_t quantise2(float *r, float t) {
    if (*r >= t) return *r -= t, 3;
    if (*r <= -t) return *r += t, 2;
    return 0;
}

static uint8_t quantise1(float *r, float t) {
    if (*r > t) return *r -= 1, 1;
    return *r += 1, 0;
}

/* Codes of `width` bits, the first in the highest bits of the first byte. */
static void model_encode(struct codec c, const float *in, float *residual, size_t n,
                         uint8_t *bytes) {
    int width = c.kind == HVD_CODEC_2BIT ? 2 : 1;
    quantise *rule = c.kind == HVD_CODEC_2BIT ? quantise2 : quantise1;
    memset(bytes, 0, codec_bytes(c, n) - 4);
    for (size_t i = 0; i < n; i++) {
        residual[i] += in[i];
        size_t per = 8 / (size_t)width, shift = 8 - (size_t)width * (i % per + 1);
        bytes[i / per] =
            (uint8_t)(bytes[i / per] | rule(&residual[i], (float)c.parameter) << shift);
    }
}

static int model_value(struct codec c, const uint8_t *bytes, size_t i) {
    if (c.kind == HVD_CODEC_1BIT) return bytes[i / 8] >> (7 - i % 8) & 1 ? 1 : -1;
    int code = bytes[i / 4] >> (6 - 2 * (i % 4)) & 3;
    return code == 3 ? 1 : code == 2 ? -1 : 0;
}

/* ---- words and residuals ---- */

static void check_steps(struct codec c, size_t n) {
    uint64_t random = 17 + n;
    OWNED float *residual = room(n * 4), *expected_residual = room(n * 4), *out = room(n * 4);
    size_t bytes = codec_bytes(c, n);
    OWNED uint8_t *message = room(bytes), *expected = room(bytes);
    for (int step = 0; step < STEPS; step++) {
        OWNED float *in = gradient(&random, n);
        OK(codec_encode(c, in, 1, residual, n, message, ERR));
        model_encode(c, in, expected_residual, n, expected + 4);
        CHECK_CASE(memcmp(message, expected, bytes) == 0, "kind %d, n %zu, step %d", c.kind, n,
                   step);
        CHECK(memcmp(residual, expected_residual, n * 4) == 0);
        codec_decode(c, message, bytes, (struct codec_sum){1, 1, 1}, out, n);
        float quantum = c.kind == HVD_CODEC_2BIT ? (float)c.parameter : 1;
        for (size_t i = 0; i < n; i++)
            CHECK(out[i] == (float)model_value(c, expected + 4, i) * quantum);
    }
}

TEST(test_words_and_residuals) {
    static const struct codec CODECS[] = {{HVD_CODEC_2BIT, 0.5},  {HVD_CODEC_2BIT, 0.1},
                                          {HVD_CODEC_2BIT, 3},    {HVD_CODEC_1BIT, 0},
                                          {HVD_CODEC_1BIT, 0.25}, {HVD_CODEC_1BIT, -0.25}};
    for (size_t c = 0; c < sizeof CODECS / sizeof *CODECS; c++)
        for (size_t s = 0; s < CODEC_NSIZES; s++) check_steps(CODECS[c], CODEC_SIZES[s]);
}

/* By hand, from MXNet's rule. */
TEST(test_known_words) {
    static const float IN[18] = {0.5f, -0.5f, 0.4f, 1,  -2, 0,  0, 0.6f, 0,
                                 0,    0,     0,    -1, 1,  -1, 1, 9,    -9};
    static const uint8_t TWO_BITS[] = {0, 0, 0, 0, 0xe3, 0x83, 0x00, 0xbb, 0xe0, 0, 0, 0};
    static const uint8_t ONE_BIT[] = {0, 0, 0, 0, 0xb1, 0x05, 0x80, 0};
    float residual[18] = {0};
    uint8_t message[12];
    CHECK_INT(codec_bytes(TWO, 18), sizeof TWO_BITS);
    OK(codec_encode(TWO, IN, 1, residual, 18, message, ERR));
    CHECK(memcmp(message, TWO_BITS, sizeof TWO_BITS) == 0);
    CHECK_NEAR((double)residual[3], 0.5, 0);
    CHECK_NEAR((double)residual[17], -8.5, 0);
    memset(residual, 0, sizeof residual);
    CHECK_INT(codec_bytes(ONE, 18), sizeof ONE_BIT);
    OK(codec_encode(ONE, IN, 1, residual, 18, message, ERR));
    CHECK(memcmp(message, ONE_BIT, sizeof ONE_BIT) == 0);
    CHECK_NEAR((double)residual[5], 1, 0);
}

/* ---- sums ---- */

static void check_sums(struct codec c, int p, size_t n, double factor) {
    size_t bytes = codec_bytes(c, n);
    OWNED uint8_t *messages = coded_messages(c, p, -1, n);
    OWNED float *out = room(n * 4), *from_sum = room(n * 4);
    OWNED void *sum = room(bytes / 4 * codec_kernels(c, p)->result);
    codec_decode(c, messages, bytes, (struct codec_sum){p, p, factor}, out, n);
    double quantum = c.kind == HVD_CODEC_2BIT ? c.parameter : 1;
    for (size_t i = 0; i < n; i++) {
        int count = 0;
        for (int r = 0; r < p; r++) count += model_value(c, messages + (size_t)r * bytes + 4, i);
        CHECK(out[i] == (float)count * (float)(quantum * factor));
    }
    add_messages(c, messages, p, n, sum);
    codec_decode_sum(c, sum, (struct codec_sum){p, p, factor}, from_sum, n);
    CHECK_CASE(memcmp(out, from_sum, n * 4) == 0, "kind %d, %d ranks, n %zu", c.kind, p, n);
}

TEST(test_the_sum_of_messages_is_exact) {
    for (int p = 1; p <= CODEC_RANKS; p++) {
        for (size_t s = 0; s < CODEC_NSIZES; s++) {
            check_sums(TWO, p, CODEC_SIZES[s], 1);
            check_sums(ONE, p, CODEC_SIZES[s], 1.0 / p);
        }
    }
    check_sums(TWO, 127, 100, 0.5);
    check_sums(TWO, 128, 100, 1);
    check_sums(ONE, 300, 100, 1.0 / 300);
}

/* Every rank sends the largest count there is. */
TEST(test_sums_do_not_wrap) {
    static const int RANKS[] = {127, 128, 400};
    for (int k = 0; k < 3; k++) {
        size_t bytes = codec_bytes(TWO, 16), p = (size_t)RANKS[k];
        OWNED uint8_t *messages = room(bytes * p), *sum = room(2 * 16 * 4);
        float residual[16], in[16], out[16];
        for (size_t i = 0; i < 16; i++) in[i] = i % 2 ? -1 : 1;
        for (size_t r = 0; r < p; r++) {
            memset(residual, 0, sizeof residual);
            OK(codec_encode(TWO, in, 1, residual, 16, messages + r * bytes, ERR));
        }
        add_messages(TWO, messages, RANKS[k], 16, sum);
        codec_decode_sum(TWO, sum, (struct codec_sum){RANKS[k], RANKS[k], 2}, out, 16);
        for (size_t i = 0; i < 16; i++) CHECK_NEAR((double)(in[i] * (float)p), (double)out[i], 0);
    }
    CHECK(codec_kernels(TWO, 40000) == NULL);
}
