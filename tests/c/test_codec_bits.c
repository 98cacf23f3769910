/* Compares the codecs 2bit, 1bit and topk with slow models of their rules: words, residuals and
 * sums must be equal. */
#include "codec_case.h"

/* ---- 2bit and 1bit ---- */

enum { STEPS = 6 };

static const struct codec TWO = {HVD_CODEC_2BIT, 0.5}, ONE = {HVD_CODEC_1BIT, 0};

/* ---- models: one value at a time ---- */

/* Quantizes *r, leaves the residual in *r and returns the code. */
typedef uint8_t quantize(float *r, float threshold);

static uint8_t quantize2(float *r, float t) {
    if (*r >= t) return *r -= t, 3;
    if (*r <= -t) return *r += t, 2;
    return 0;
}

static uint8_t quantize1(float *r, float t) {
    if (*r > t) return *r -= 1, 1;
    return *r += 1, 0;
}

/* Encodes to codes of `width` bits. The first code is in the highest bits of the first byte. */
static void model_encode(struct codec c, const float *in, float *residual, size_t n,
                         uint8_t *bytes) {
    int width = c.kind == HVD_CODEC_2BIT ? 2 : 1;
    quantize *rule = c.kind == HVD_CODEC_2BIT ? quantize2 : quantize1;
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
        OK(encode_whole(c, in, 1, residual, n, message, ERR));
        model_encode(c, in, expected_residual, n, expected + 4);
        CHECK_CASE(memcmp(message, expected, bytes) == 0, "kind %d, n %zu, step %d", c.kind, n,
                   step);
        CHECK(memcmp(residual, expected_residual, n * 4) == 0);
        codec_decode(c, message, bytes, (struct codec_sum){1, 1, 1}, out, codec_whole(n));
        float quantum = c.kind == HVD_CODEC_2BIT ? (float)c.parameter : 1;
        for (size_t i = 0; i < n; i++)
            CHECK(out[i] == (float)model_value(c, expected + 4, i) * quantum);
    }
}

TEST(test_words_and_residuals_equal_those_of_a_slow_model) {
    static const struct codec CODECS[] = {{HVD_CODEC_2BIT, 0.5},  {HVD_CODEC_2BIT, 0.1},
                                          {HVD_CODEC_2BIT, 3},    {HVD_CODEC_1BIT, 0},
                                          {HVD_CODEC_1BIT, 0.25}, {HVD_CODEC_1BIT, -0.25}};
    for (size_t c = 0; c < sizeof CODECS / sizeof *CODECS; c++)
        for (size_t s = 0; s < CODEC_NSIZES; s++) check_steps(CODECS[c], CODEC_SIZES[s]);
}

/* The words were computed by hand, with MXNet's rule. */
TEST(test_encoded_gradients_equal_the_bytes_of_mxnets_codecs) {
    static const float IN[18] = {0.5f, -0.5f, 0.4f, 1,  -2, 0,  0, 0.6f, 0,
                                 0,    0,     0,    -1, 1,  -1, 1, 9,    -9};
    static const uint8_t TWO_BITS[] = {0, 0, 0, 0, 0xe3, 0x83, 0x00, 0xbb, 0xe0, 0, 0, 0};
    static const uint8_t ONE_BIT[] = {0, 0, 0, 0, 0xb1, 0x05, 0x80, 0};
    float residual[18] = {0};
    uint8_t message[12];
    CHECK_INT(codec_bytes(TWO, 18), sizeof TWO_BITS);
    OK(encode_whole(TWO, IN, 1, residual, 18, message, ERR));
    CHECK(memcmp(message, TWO_BITS, sizeof TWO_BITS) == 0);
    CHECK_NEAR((double)residual[3], 0.5, 0);
    CHECK_NEAR((double)residual[17], -8.5, 0);
    memset(residual, 0, sizeof residual);
    CHECK_INT(codec_bytes(ONE, 18), sizeof ONE_BIT);
    OK(encode_whole(ONE, IN, 1, residual, 18, message, ERR));
    CHECK(memcmp(message, ONE_BIT, sizeof ONE_BIT) == 0);
    CHECK_NEAR((double)residual[5], 1, 0);
}

/* ---- sums ---- */

static void check_sums(struct codec c, int p, size_t n, double factor) {
    size_t bytes = codec_bytes(c, n);
    OWNED uint8_t *messages = coded_messages(c, p, -1, n);
    OWNED float *out = room(n * 4), *from_sum = room(n * 4);
    OWNED void *sum = room(bytes / 4 * codec_kernels(c, p)->result);
    codec_decode(c, messages, bytes, (struct codec_sum){p, p, factor}, out, codec_whole(n));
    double quantum = c.kind == HVD_CODEC_2BIT ? c.parameter : 1;
    for (size_t i = 0; i < n; i++) {
        int count = 0;
        for (int r = 0; r < p; r++) count += model_value(c, messages + (size_t)r * bytes + 4, i);
        CHECK(out[i] == (float)count * (float)(quantum * factor));
    }
    add_messages(c, messages, p, n, sum);
    codec_decode_sum(c, sum, (struct codec_sum){p, p, factor}, from_sum, codec_whole(n));
    CHECK_CASE(memcmp(out, from_sum, n * 4) == 0, "kind %d, %d ranks, n %zu", c.kind, p, n);
}

TEST(test_a_decoded_sum_of_messages_equals_the_sum_of_decoded_messages) {
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

/* Every rank sends the largest value that a code can have. */
TEST(test_sums_of_many_messages_do_not_wrap) {
    static const int RANKS[] = {127, 128, 400};
    for (int k = 0; k < 3; k++) {
        size_t bytes = codec_bytes(TWO, 16), p = (size_t)RANKS[k];
        OWNED uint8_t *messages = room(bytes * p), *sum = room(2 * 16 * 4);
        float residual[16], in[16], out[16];
        for (size_t i = 0; i < 16; i++) in[i] = i % 2 ? -1 : 1;
        for (size_t r = 0; r < p; r++) {
            memset(residual, 0, sizeof residual);
            OK(encode_whole(TWO, in, 1, residual, 16, messages + r * bytes, ERR));
        }
        add_messages(TWO, messages, RANKS[k], 16, sum);
        codec_decode_sum(TWO, sum, (struct codec_sum){RANKS[k], RANKS[k], 2}, out, codec_whole(16));
        for (size_t i = 0; i < 16; i++) CHECK_NEAR((double)(in[i] * (float)p), (double)out[i], 0);
    }
    CHECK(codec_kernels(TWO, 40000) == NULL);
}

/* ---- topk: which values are sent, and the residual of each ---- */

static const struct codec TOPK = {HVD_CODEC_TOPK, 0.1};

/* Marks the k largest values in `taken`: k times, takes the largest value that is not taken yet. */
static void model_topk(const float *r, size_t n, size_t k, bool *taken) {
    for (size_t j = 0; j < k; j++) {
        size_t best = n;
        for (size_t i = 0; i < n; i++)
            if (!taken[i] && (best == n || fabsf(r[i]) > fabsf(r[best]))) best = i;
        taken[best] = true;
    }
}

static void check_topk_message(const uint8_t *message, const float *r, const float *residual,
                               size_t n, size_t k) {
    OWNED bool *taken = room(n);
    const uint8_t *at = message + 4, *values = at + 4 * k;
    model_topk(r, n, k, taken);
    for (size_t i = 0; i < n; i++) {
        uint32_t index;
        float value;
        CHECK(residual[i] == (taken[i] ? 0 : r[i]));
        if (!taken[i]) continue;
        memcpy(&index, at, 4);
        memcpy(&value, values, 4);
        CHECK_INT(index, i);
        CHECK(value == r[i]);
        at += 4;
        values += 4;
    }
    CHECK(at == message + 4 + 4 * k);
}

/* `levels`: number of different magnitudes; if `levels` is small, there are ties. */
static void check_topk(double ratio, size_t n, double levels) {
    struct codec c = {HVD_CODEC_TOPK, ratio};
    uint64_t random = 5 + n;
    OWNED float *residual = room(n * 4), *r = room(n * 4);
    OWNED uint8_t *message = room(codec_bytes(c, n));
    for (int step = 0; step < 3; step++) {
        OWNED float *in = gradient(&random, n);
        for (size_t i = 0; i < n; i++) {
            in[i] = (float)(trunc((double)in[i] * levels) / levels);
            r[i] = residual[i] + in[i];
        }
        OK(encode_whole(c, in, 1, residual, n, message, ERR));
        check_topk_message(message, r, residual, n, codec_topk_count(ratio, n));
    }
}

TEST(test_topk_sends_the_largest_values) {
    static const double RATIOS[] = {1e-9, 0.01, 0.1, 0.5, 0.999, 1};
    for (size_t k = 0; k < sizeof RATIOS / sizeof *RATIOS; k++) {
        for (size_t s = 0; s < CODEC_NSIZES - 1; s++) {
            check_topk(RATIOS[k], CODEC_SIZES[s], 1e6);
            check_topk(RATIOS[k], CODEC_SIZES[s], 2);
        }
    }
    check_topk(0.1, 300, 0.1); /* all values are zero */
    CHECK_INT(codec_topk_count(0.01, 0), 0);
    CHECK_INT(codec_topk_count(0.01, 1), 1);
    CHECK_INT(codec_topk_count(0.01, 100), 1);
    CHECK_INT(codec_topk_count(0.01, 101), 2);
    CHECK_INT(codec_topk_count(1, 101), 101);
}

/* Magnitudes that differ only in the last bit, and denormals. */
TEST(test_topk_distinguishes_values_that_differ_only_in_the_last_bit) {
    float in[3] = {1, nextafterf(1, 2), -nextafterf(1, 0)}, residual[3] = {0}, out[3];
    float small[3] = {1e-44f, -3e-44f, 2e-44f};
    uint8_t message[12];
    OK(encode_whole(TOPK, in, 1, residual, 3, message, ERR));
    codec_decode(TOPK, message, sizeof message, (struct codec_sum){1, 1, 1}, out, codec_whole(3));
    CHECK(out[0] == 0 && out[1] == in[1] && out[2] == 0);
    CHECK(residual[0] == in[0] && residual[1] == 0 && residual[2] == in[2]);
    memset(residual, 0, sizeof residual);
    OK(encode_whole(TOPK, small, 1, residual, 3, message, ERR));
    codec_decode(TOPK, message, sizeof message, (struct codec_sum){1, 1, 1}, out, codec_whole(3));
    CHECK(out[0] == 0 && out[1] == small[1] && out[2] == 0);
}

TEST(test_the_sum_of_topk_messages_is_the_sum_of_their_values) {
    for (int p = 1; p <= CODEC_RANKS; p++) {
        size_t n = 100, bytes = codec_bytes(TOPK, n), k = 10;
        OWNED uint8_t *messages = coded_messages(TOPK, p, -1, n);
        float out[100], expected[100] = {0}, factor = (float)(1.0 / p);
        for (int r = 0; r < p; r++) {
            const uint8_t *at = messages + (size_t)r * bytes + 4;
            for (size_t j = 0; j < k; j++) {
                uint32_t i;
                float x;
                memcpy(&i, at + 4 * j, 4);
                memcpy(&x, at + 4 * k + 4 * j, 4);
                expected[i] += x * factor;
            }
        }
        codec_decode(TOPK, messages, bytes, (struct codec_sum){p, p, 1.0 / p}, out, codec_whole(n));
        CHECK(memcmp(out, expected, sizeof out) == 0);
        uint32_t wild = 4000000000u; /* decoding must not write to a damaged index */
        memcpy(messages + 4, &wild, 4);
        codec_decode(TOPK, messages, bytes, (struct codec_sum){p, p, 1}, out, codec_whole(n));
    }
}

TEST(test_an_encoding_that_lacks_memory_leaves_the_residual_unchanged) {
    const size_t n = 9 << 20; /* so large that malloc asks the kernel, which refuses */
    if (CHECK_SLOW) return;   /* with a sanitizer, a refused malloc ends the program */
    OWNED float *in = room(n * 4), *residual = room(n * 4);
    OWNED uint8_t *message = room(codec_bytes(TOPK, n));
    in[1] = 1;
    struct rlimit old = limit_to(RLIMIT_AS, 0);
    FAILS(encode_whole(TOPK, in, 1, residual, n, message, ERR), HVD_NO_MEMORY);
    setrlimit(RLIMIT_AS, &old);
    CHECK(residual[1] == 0);
}
