/* What all codecs have in common: refused parameters, joined ranks, non-finite values, casts to 16
 * bits. */
#include "codec_case.h"

#include "kernels/half.h"

static const struct codec TWO = {HVD_CODEC_2BIT, 0.5}, ONE = {HVD_CODEC_1BIT, 0},
                          TOPK = {HVD_CODEC_TOPK, 0.1};

/* A rank that has joined sends bytes of value 0, which change no sum. */
TEST(test_a_joined_rank_adds_nothing) {
    static const struct codec CODECS[] = {TWO, ONE, TOPK};
    enum { N = 100 };
    for (int c = 0; c < 3; c++) {
        size_t bytes = codec_bytes(CODECS[c], N);
        OWNED uint8_t *messages = coded_messages(CODECS[c], 3, -1, N), *sum = room(bytes * 8);
        float expected[N], out[N];
        codec_decode(CODECS[c], messages, bytes, (struct codec_sum){2, 2, 0.5}, expected,
                     codec_whole(N));
        memset(messages + 2 * bytes, 0, bytes);
        codec_decode(CODECS[c], messages, bytes, (struct codec_sum){3, 2, 0.5}, out,
                     codec_whole(N));
        CHECK(memcmp(out, expected, sizeof out) == 0);
        if (codec_kernels(CODECS[c], 3)) {
            add_messages(CODECS[c], messages, 3, N, sum);
            codec_decode_sum(CODECS[c], sum, (struct codec_sum){3, 2, 0.5}, out, codec_whole(N));
            CHECK(memcmp(out, expected, sizeof out) == 0);
        }
    }
}

/* Checks that all p ranks decode NaN if rank `bad` has a non-finite value. */
static void check_marked(struct codec c, int p, int bad, float value, size_t where) {
    enum { N = 50 };
    size_t bytes = codec_bytes(c, N);
    OWNED uint8_t *messages = coded_messages(c, p, -1, N);
    float in[N] = {0}, residual[N], before[N], out[N];
    for (size_t i = 0; i < N; i++) residual[i] = before[i] = (float)i;
    if (isfinite(value)) residual[where] = before[where] = value;
    in[where] = value;
    OK(encode_whole(c, in, 1, residual, N, messages + (size_t)bad * bytes, ERR));
    CHECK(memcmp(residual, before, sizeof before) == 0);
    codec_decode(c, messages, bytes, (struct codec_sum){p, p, 1}, out, codec_whole(N));
    for (size_t i = 0; i < N; i++) CHECK(isnan(out[i]));
    if (codec_kernels(c, p)) {
        OWNED uint8_t *sum = room(bytes / 4 * codec_kernels(c, p)->result);
        add_messages(c, messages, p, N, sum);
        memset(out, 0, sizeof out);
        codec_decode_sum(c, sum, (struct codec_sum){p, p, 1}, out, codec_whole(N));
        for (size_t i = 0; i < N; i++) CHECK(isnan(out[i]));
    }
}

TEST(test_every_rank_decodes_nan_if_one_gradient_is_not_finite) {
    static const struct codec CODECS[] = {TWO, ONE, TOPK};
    static const float VALUES[] = {NAN, INFINITY, -INFINITY,
                                   3e38f}; /* 3e38 overflows when the residual is added */
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 4; v++)
            for (int p = 1; p <= 3; p++)
                for (int bad = 0; bad < p; bad++)
                    check_marked(CODECS[c], p, bad, VALUES[v], (size_t)(49 * (v % 2)));
    check_marked(TWO, 200, 7, NAN, 20);
    check_marked(ONE, 200, 7, NAN, 20);
}

TEST(test_a_message_has_the_scaled_values) {
    static const struct codec CODECS[] = {TWO, ONE, TOPK, {HVD_CODEC_FLOAT16, 0}};
    for (int c = 0; c < 4; c++) {
        float in[100], scaled[100], a[100] = {0}, b[100] = {0};
        uint64_t random = 1;
        uint8_t x[300], y[300];
        for (int i = 0; i < 100; i++) in[i] = (float)random_unit(&random);
        for (int i = 0; i < 100; i++) scaled[i] = in[i] * 0.75f;
        OK(encode_whole(CODECS[c], in, 0.75, a, 100, x, ERR));
        OK(encode_whole(CODECS[c], scaled, 1, b, 100, y, ERR));
        CHECK(memcmp(x, y, codec_bytes(CODECS[c], 100)) == 0);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

TEST(test_a_cast_rounds_to_16_bits) {
    static const float IN[] = {0, -0.0f, 1, 0.1f, -3.3f, 70000, 1e-8f, INFINITY, 1e38f};
    enum { N = sizeof IN / sizeof *IN };
    static const struct codec HALF = {HVD_CODEC_FLOAT16, 0}, BFLOAT = {HVD_CODEC_BFLOAT16, 0};
    uint16_t half[N], bfloat[N];
    float out[N], nan = NAN;
    CHECK_INT(codec_bytes(HALF, N), 2 * N);
    OK(encode_whole(HALF, IN, 1, NULL, N, half, ERR));
    OK(encode_whole(BFLOAT, IN, 1, NULL, N, bfloat, ERR));
    for (size_t i = 0; i < N; i++) CHECK_INT(half[i], half_of_float(IN[i]));
    for (size_t i = 0; i < N; i++) CHECK_INT(bfloat[i], bfloat_of_float(IN[i]));
    codec_decode_sum(BFLOAT, bfloat, (struct codec_sum){1, 1, 1}, out, codec_whole(N));
    for (size_t i = 0; i < N; i++) CHECK(out[i] == float_of_bfloat(bfloat[i]));
    OK(encode_whole(HALF, &nan, 1, NULL, 1, half, ERR));
    codec_decode_sum(HALF, half, (struct codec_sum){2, 2, 1}, out, codec_whole(1));
    CHECK(isnan(out[0]));
}

static void check_refused(struct codec c, const char *part) {
    FAILS(codec_check(c, "w", 10, ERR), HVD_INVALID);
    CHECK_HAS(ERR->text, "tensor 'w'");
    CHECK_HAS(ERR->text, part);
}

TEST(test_a_codec_with_a_wrong_threshold_or_ratio_is_refused) {
    OK(codec_check(TWO, "w", 10, ERR));
    OK(codec_check(ONE, "w", 10, ERR));
    OK(codec_check((struct codec){HVD_CODEC_1BIT, -1}, "w", 10, ERR));
    OK(codec_check((struct codec){HVD_CODEC_TOPK, 1}, "w", 10, ERR));
    OK(codec_check((struct codec){HVD_CODEC_NONE, 0}, "w", 10, ERR));
    static const double THRESHOLDS[] = {0, -0.5, NAN, INFINITY, 1e39, 1e-60};
    for (int i = 0; i < 6; i++)
        check_refused((struct codec){HVD_CODEC_2BIT, THRESHOLDS[i]},
                      "threshold of compression '2bit'");
    check_refused((struct codec){HVD_CODEC_1BIT, NAN}, "threshold of compression '1bit'");
    check_refused((struct codec){HVD_CODEC_TOPK, 0}, "ratio of compression 'topk' is 0");
    check_refused((struct codec){HVD_CODEC_TOPK, 1.5}, "ratio of compression 'topk' is 1.5");
    check_refused((struct codec){HVD_CODEC_TOPK, NAN}, "ratio of compression 'topk'");
    check_refused((struct codec){HVD_CODECS, 0}, "unknown codec");
    check_refused((struct codec){-1, 0}, "unknown codec");
    FAILS(codec_check(TOPK, "w", (size_t)1 << 32, ERR), HVD_UNSUPPORTED);
}

TEST(test_error_texts_name_codec_and_parameter) {
    static const struct {
        struct codec codec;
        const char *text;
    } ROWS[] = {{{HVD_CODEC_NONE, 0}, "none"},     {{HVD_CODEC_FLOAT16, 0}, "fp16"},
                {{HVD_CODEC_BFLOAT16, 0}, "bf16"}, {{HVD_CODEC_2BIT, 0.5}, "2bit(0.5)"},
                {{HVD_CODEC_1BIT, 0}, "1bit(0)"},  {{HVD_CODEC_TOPK, 0.01}, "topk(0.01)"}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        char text[40];
        codec_text(ROWS[i].codec, text, sizeof text);
        CHECK_TEXT(text, ROWS[i].text);
    }
}
