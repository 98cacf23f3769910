/* Codecs against slow models, written from their rules: words, residuals and sums, bit by bit. */
#include "check.h"

#include "codec.h"
#include "half.h"
#include "random.h"

enum { MOST = 1009, MOST_RANKS = 9, STEPS = 6 };

static const size_t SIZES[] = {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 64, 100, 511, MOST};
enum { NSIZES = sizeof SIZES / sizeof *SIZES };

static const struct codec TWO = {HVD_CODEC_2BIT, 0.5}, ONE = {HVD_CODEC_1BIT, 0};

static void *get(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    REQUIRE(memory != NULL);
    return memory;
}

/* Exactly as large as needed: a byte too far is seen by the address sanitizer. */
static float *gradient(uint64_t *random, size_t n) {
    float *x = get(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = (float)(2 * random_unit(random));
    return x;
}

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

/* ---- 2bit and 1bit ---- */

static void check_steps(struct codec c, size_t n) {
    uint64_t random = 17 + n;
    float *residual = get(n * 4), *expected_residual = get(n * 4), *out = get(n * 4);
    size_t bytes = codec_bytes(c, n);
    uint8_t *message = get(bytes), *expected = get(bytes);
    hvd_error err;
    for (int step = 0; step < STEPS; step++) {
        float *in = gradient(&random, n);
        CHECK_OK(codec_encode(c, in, 1, residual, n, message, &err), err);
        model_encode(c, in, expected_residual, n, expected + 4);
        CHECK_CASE(memcmp(message, expected, bytes) == 0, "kind %d, n %zu, step %d", c.kind, n,
                   step);
        CHECK(memcmp(residual, expected_residual, n * 4) == 0);
        codec_decode(c, message, bytes, (struct codec_sum){1, 1, 1}, out, n);
        float quantum = c.kind == HVD_CODEC_2BIT ? (float)c.parameter : 1;
        for (size_t i = 0; i < n; i++)
            CHECK(out[i] == (float)model_value(c, expected + 4, i) * quantum);
        free(in);
    }
    free(residual);
    free(expected_residual);
    free(out);
    free(message);
    free(expected);
}

static void test_words_and_residuals(void) {
    static const struct codec CODECS[] = {{HVD_CODEC_2BIT, 0.5},  {HVD_CODEC_2BIT, 0.1},
                                          {HVD_CODEC_2BIT, 3},    {HVD_CODEC_1BIT, 0},
                                          {HVD_CODEC_1BIT, 0.25}, {HVD_CODEC_1BIT, -0.25}};
    for (size_t c = 0; c < sizeof CODECS / sizeof *CODECS; c++)
        for (size_t s = 0; s < NSIZES; s++) check_steps(CODECS[c], SIZES[s]);
}

/* By hand, from MXNet's rule. */
static void test_known_words(void) {
    static const float IN[18] = {0.5f, -0.5f, 0.4f, 1,  -2, 0,  0, 0.6f, 0,
                                 0,    0,     0,    -1, 1,  -1, 1, 9,    -9};
    static const uint8_t TWO_BITS[] = {0, 0, 0, 0, 0xe3, 0x83, 0x00, 0xbb, 0xe0, 0, 0, 0};
    static const uint8_t ONE_BIT[] = {0, 0, 0, 0, 0xb1, 0x05, 0x80, 0};
    float residual[18] = {0};
    uint8_t message[12];
    hvd_error err;
    CHECK_INT(codec_bytes(TWO, 18), sizeof TWO_BITS);
    CHECK_OK(codec_encode(TWO, IN, 1, residual, 18, message, &err), err);
    CHECK(memcmp(message, TWO_BITS, sizeof TWO_BITS) == 0);
    CHECK_NEAR((double)residual[3], 0.5, 0);
    CHECK_NEAR((double)residual[17], -8.5, 0);
    memset(residual, 0, sizeof residual);
    CHECK_INT(codec_bytes(ONE, 18), sizeof ONE_BIT);
    CHECK_OK(codec_encode(ONE, IN, 1, residual, 18, message, &err), err);
    CHECK(memcmp(message, ONE_BIT, sizeof ONE_BIT) == 0);
    CHECK_NEAR((double)residual[5], 1, 0);
}

/* Messages of p ranks, one after the other. */
static uint8_t *messages_of(struct codec c, int p, size_t n) {
    uint64_t random = 3 * n + (size_t)p;
    size_t bytes = codec_bytes(c, n);
    uint8_t *messages = get(bytes * (size_t)p);
    hvd_error err;
    for (int r = 0; r < p; r++) {
        float *in = gradient(&random, n), *residual = get(n * 4);
        CHECK_OK(codec_encode(c, in, 1, residual, n, messages + (size_t)r * bytes, &err), err);
        free(in);
        free(residual);
    }
    return messages;
}

static void add_messages(struct codec c, const uint8_t *messages, int p, size_t n, void *sum) {
    const struct reduce_kernels *k = codec_kernels(c, p);
    size_t bytes = codec_bytes(c, n), words = bytes / k->size;
    char *wide = get(words * k->wide);
    k->widen(wide, messages, words, 1);
    for (int r = 1; r < p; r++) k->combine(wide, messages + (size_t)r * bytes, words);
    k->narrow(sum, wide, words, (struct reduce_final){1, 1});
    free(wide);
}

static void check_sums(struct codec c, int p, size_t n, double factor) {
    size_t bytes = codec_bytes(c, n);
    uint8_t *messages = messages_of(c, p, n);
    float *out = get(n * 4), *from_sum = get(n * 4);
    void *sum = get(bytes / 4 * codec_kernels(c, p)->sum);
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
    free(messages);
    free(out);
    free(from_sum);
    free(sum);
}

static void test_sums(void) {
    for (int p = 1; p <= MOST_RANKS; p++) {
        for (size_t s = 0; s < NSIZES; s++) {
            check_sums(TWO, p, SIZES[s], 1);
            check_sums(ONE, p, SIZES[s], 1.0 / p);
        }
    }
    check_sums(TWO, 127, 100, 0.5);
    check_sums(TWO, 128, 100, 1);
    check_sums(ONE, 300, 100, 1.0 / 300);
}

/* Every rank sends the largest count there is. */
static void test_sums_do_not_wrap(void) {
    static const int RANKS[] = {127, 128, 400};
    for (int k = 0; k < 3; k++) {
        size_t bytes = codec_bytes(TWO, 16), p = (size_t)RANKS[k];
        uint8_t *messages = get(bytes * p), *sum = get(2 * 16 * 4);
        float residual[16], in[16], out[16];
        hvd_error err;
        for (size_t i = 0; i < 16; i++) in[i] = i % 2 ? -1 : 1;
        for (size_t r = 0; r < p; r++) {
            memset(residual, 0, sizeof residual);
            CHECK_OK(codec_encode(TWO, in, 1, residual, 16, messages + r * bytes, &err), err);
        }
        add_messages(TWO, messages, RANKS[k], 16, sum);
        codec_decode_sum(TWO, sum, (struct codec_sum){RANKS[k], RANKS[k], 2}, out, 16);
        for (size_t i = 0; i < 16; i++) CHECK_NEAR((double)(in[i] * (float)p), (double)out[i], 0);
        free(messages);
        free(sum);
    }
    CHECK(codec_kernels(TWO, 40000) == NULL);
}

/* The message of a rank that has joined, zero bytes, changes nothing. */
static void test_joined(void) {
    static const struct codec CODECS[] = {TWO, ONE, {HVD_CODEC_TOPK, 0.1}};
    enum { N = 100 };
    for (int c = 0; c < 3; c++) {
        size_t bytes = codec_bytes(CODECS[c], N);
        uint8_t *messages = messages_of(CODECS[c], 3, N), *sum = get(bytes * 8);
        float expected[N], out[N];
        codec_decode(CODECS[c], messages, bytes, (struct codec_sum){2, 2, 0.5}, expected, N);
        memset(messages + 2 * bytes, 0, bytes);
        codec_decode(CODECS[c], messages, bytes, (struct codec_sum){3, 2, 0.5}, out, N);
        CHECK(memcmp(out, expected, sizeof out) == 0);
        if (codec_kernels(CODECS[c], 3)) {
            add_messages(CODECS[c], messages, 3, N, sum);
            codec_decode_sum(CODECS[c], sum, (struct codec_sum){3, 2, 0.5}, out, N);
            CHECK(memcmp(out, expected, sizeof out) == 0);
        }
        free(messages);
        free(sum);
    }
}

/* ---- topk ---- */

static const struct codec TOPK = {HVD_CODEC_TOPK, 0.1};

/* Takes the largest of what is left, k times. */
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
    bool *taken = get(n);
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
    free(taken);
}

/* `levels`: how many different magnitudes there are; few make ties. */
static void check_topk(double ratio, size_t n, double levels) {
    struct codec c = {HVD_CODEC_TOPK, ratio};
    uint64_t random = 5 + n;
    float *residual = get(n * 4), *r = get(n * 4);
    uint8_t *message = get(codec_bytes(c, n));
    hvd_error err;
    for (int step = 0; step < 3; step++) {
        float *in = gradient(&random, n);
        for (size_t i = 0; i < n; i++) {
            in[i] = (float)(trunc((double)in[i] * levels) / levels);
            r[i] = residual[i] + in[i];
        }
        CHECK_OK(codec_encode(c, in, 1, residual, n, message, &err), err);
        check_topk_message(message, r, residual, n, codec_topk_count(ratio, n));
        free(in);
    }
    free(residual);
    free(r);
    free(message);
}

static void test_topk(void) {
    static const double RATIOS[] = {1e-9, 0.01, 0.1, 0.5, 0.999, 1};
    for (size_t k = 0; k < sizeof RATIOS / sizeof *RATIOS; k++) {
        for (size_t s = 0; s < NSIZES - 1; s++) {
            check_topk(RATIOS[k], SIZES[s], 1e6);
            check_topk(RATIOS[k], SIZES[s], 2);
        }
    }
    check_topk(0.1, 300, 0.1); /* all zero */
    CHECK_INT(codec_topk_count(0.01, 0), 0);
    CHECK_INT(codec_topk_count(0.01, 1), 1);
    CHECK_INT(codec_topk_count(0.01, 100), 1);
    CHECK_INT(codec_topk_count(0.01, 101), 2);
    CHECK_INT(codec_topk_count(1, 101), 101);
}

/* Magnitudes that differ in the last bit only, and denormals. */
static void test_topk_tells_neighbours_apart(void) {
    float in[3] = {1, nextafterf(1, 2), -nextafterf(1, 0)}, residual[3] = {0}, out[3];
    float small[3] = {1e-44f, -3e-44f, 2e-44f};
    uint8_t message[12];
    hvd_error err;
    CHECK_OK(codec_encode(TOPK, in, 1, residual, 3, message, &err), err);
    codec_decode(TOPK, message, sizeof message, (struct codec_sum){1, 1, 1}, out, 3);
    CHECK(out[0] == 0 && out[1] == in[1] && out[2] == 0);
    CHECK(residual[0] == in[0] && residual[1] == 0 && residual[2] == in[2]);
    memset(residual, 0, sizeof residual);
    CHECK_OK(codec_encode(TOPK, small, 1, residual, 3, message, &err), err);
    codec_decode(TOPK, message, sizeof message, (struct codec_sum){1, 1, 1}, out, 3);
    CHECK(out[0] == 0 && out[1] == small[1] && out[2] == 0);
}

static void test_topk_sums(void) {
    for (int p = 1; p <= MOST_RANKS; p++) {
        size_t n = 100, bytes = codec_bytes(TOPK, n), k = 10;
        uint8_t *messages = messages_of(TOPK, p, n);
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
        codec_decode(TOPK, messages, bytes, (struct codec_sum){p, p, 1.0 / p}, out, n);
        CHECK(memcmp(out, expected, sizeof out) == 0);
        uint32_t wild = 4000000000u; /* damaged: nothing outside is written to */
        memcpy(messages + 4, &wild, 4);
        codec_decode(TOPK, messages, bytes, (struct codec_sum){p, p, 1}, out, n);
        free(messages);
    }
}

/* ---- what all have in common ---- */

/* The rank `bad` of p has met a value that is not finite. */
static void check_marked(struct codec c, int p, int bad, float value, size_t where) {
    enum { N = 50 };
    size_t bytes = codec_bytes(c, N);
    uint8_t *messages = messages_of(c, p, N);
    float in[N] = {0}, residual[N], before[N], out[N];
    hvd_error err;
    for (size_t i = 0; i < N; i++) residual[i] = before[i] = (float)i;
    if (isfinite(value)) residual[where] = before[where] = value;
    in[where] = value;
    CHECK_OK(codec_encode(c, in, 1, residual, N, messages + (size_t)bad * bytes, &err), err);
    CHECK(memcmp(residual, before, sizeof before) == 0);
    codec_decode(c, messages, bytes, (struct codec_sum){p, p, 1}, out, N);
    for (size_t i = 0; i < N; i++) CHECK(isnan(out[i]));
    if (codec_kernels(c, p)) {
        uint8_t *sum = get(bytes / 4 * codec_kernels(c, p)->sum);
        add_messages(c, messages, p, N, sum);
        memset(out, 0, sizeof out);
        codec_decode_sum(c, sum, (struct codec_sum){p, p, 1}, out, N);
        for (size_t i = 0; i < N; i++) CHECK(isnan(out[i]));
        free(sum);
    }
    free(messages);
}

static void test_not_finite(void) {
    static const struct codec CODECS[] = {TWO, ONE, TOPK};
    static const float VALUES[] = {NAN, INFINITY, -INFINITY,
                                   3e38f}; /* the last: with the residual */
    for (int c = 0; c < 3; c++)
        for (int v = 0; v < 4; v++)
            for (int p = 1; p <= 3; p++)
                for (int bad = 0; bad < p; bad++)
                    check_marked(CODECS[c], p, bad, VALUES[v], (size_t)(49 * (v % 2)));
    check_marked(TWO, 200, 7, NAN, 20);
    check_marked(ONE, 200, 7, NAN, 20);
}

static void test_scale(void) {
    static const struct codec CODECS[] = {TWO, ONE, TOPK, {HVD_CODEC_FLOAT16, 0}};
    for (int c = 0; c < 4; c++) {
        float in[100], scaled[100], a[100] = {0}, b[100] = {0};
        uint64_t random = 1;
        uint8_t x[300], y[300];
        hvd_error err;
        for (int i = 0; i < 100; i++) in[i] = (float)random_unit(&random);
        for (int i = 0; i < 100; i++) scaled[i] = in[i] * 0.75f;
        CHECK_OK(codec_encode(CODECS[c], in, 0.75, a, 100, x, &err), err);
        CHECK_OK(codec_encode(CODECS[c], scaled, 1, b, 100, y, &err), err);
        CHECK(memcmp(x, y, codec_bytes(CODECS[c], 100)) == 0);
        CHECK(memcmp(a, b, sizeof a) == 0);
    }
}

static void test_casts(void) {
    static const float IN[] = {0, -0.0f, 1, 0.1f, -3.3f, 70000, 1e-8f, INFINITY, 1e38f};
    enum { N = sizeof IN / sizeof *IN };
    static const struct codec HALF = {HVD_CODEC_FLOAT16, 0}, BFLOAT = {HVD_CODEC_BFLOAT16, 0};
    uint16_t half[N], bfloat[N];
    float out[N], nan = NAN;
    hvd_error err;
    CHECK_INT(codec_bytes(HALF, N), 2 * N);
    CHECK_OK(codec_encode(HALF, IN, 1, NULL, N, half, &err), err);
    CHECK_OK(codec_encode(BFLOAT, IN, 1, NULL, N, bfloat, &err), err);
    for (size_t i = 0; i < N; i++) CHECK_INT(half[i], half_of_float(IN[i]));
    for (size_t i = 0; i < N; i++) CHECK_INT(bfloat[i], bfloat_of_float(IN[i]));
    codec_decode_sum(BFLOAT, bfloat, (struct codec_sum){1, 1, 1}, out, N);
    for (size_t i = 0; i < N; i++) CHECK(out[i] == float_of_bfloat(bfloat[i]));
    CHECK_OK(codec_encode(HALF, &nan, 1, NULL, 1, half, &err), err);
    codec_decode_sum(HALF, half, (struct codec_sum){2, 2, 1}, out, 1);
    CHECK(isnan(out[0]));
}

static void check_refused(struct codec c, const char *part) {
    hvd_error err;
    CHECK_CODE(codec_check(c, "w", 10, &err), HVD_INVALID, err);
    CHECK_HAS(err.text, "tensor 'w'");
    CHECK_HAS(err.text, part);
}

static void test_parameters(void) {
    hvd_error err;
    CHECK_OK(codec_check(TWO, "w", 10, &err), err);
    CHECK_OK(codec_check(ONE, "w", 10, &err), err);
    CHECK_OK(codec_check((struct codec){HVD_CODEC_1BIT, -1}, "w", 10, &err), err);
    CHECK_OK(codec_check((struct codec){HVD_CODEC_TOPK, 1}, "w", 10, &err), err);
    CHECK_OK(codec_check((struct codec){HVD_CODEC_NONE, 0}, "w", 10, &err), err);
    static const double THRESHOLDS[] = {0, -0.5, NAN, INFINITY, 1e39, 1e-60};
    for (int i = 0; i < 6; i++)
        check_refused((struct codec){HVD_CODEC_2BIT, THRESHOLDS[i]}, "threshold of 2bit");
    check_refused((struct codec){HVD_CODEC_1BIT, NAN}, "threshold of 1bit");
    check_refused((struct codec){HVD_CODEC_TOPK, 0}, "ratio of topk is 0");
    check_refused((struct codec){HVD_CODEC_TOPK, 1.5}, "ratio of topk is 1.5");
    check_refused((struct codec){HVD_CODEC_TOPK, NAN}, "ratio of topk");
    check_refused((struct codec){HVD_CODECS, 0}, "unknown codec");
    check_refused((struct codec){-1, 0}, "unknown codec");
    CHECK_CODE(codec_check(TOPK, "w", (size_t)1 << 32, &err), HVD_UNSUPPORTED, err);
}

static void test_texts(void) {
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

/* What a message leaves out comes later: what was decoded, and the residual, are all there was. */
static void test_nothing_is_lost(void) {
    static const struct codec CODECS[] = {{HVD_CODEC_2BIT, 0.25}, ONE, TOPK};
    for (int c = 0; c < 3; c++) {
        float residual[100] = {0}, out[100];
        double sent[100] = {0}, given[100] = {0};
        uint8_t message[300];
        uint64_t random = 9;
        hvd_error err;
        for (int step = 0; step < 50; step++) {
            float *in = gradient(&random, 100);
            CHECK_OK(codec_encode(CODECS[c], in, 1, residual, 100, message, &err), err);
            codec_decode(CODECS[c], message, sizeof message, (struct codec_sum){1, 1, 1}, out, 100);
            for (int i = 0; i < 100; i++) given[i] += (double)in[i];
            for (int i = 0; i < 100; i++) sent[i] += (double)out[i];
            free(in);
        }
        for (int i = 0; i < 100; i++) CHECK_NEAR(sent[i] + (double)residual[i], given[i], 1e-4);
    }
}

int main(void) {
    check_begin();
    RUN(test_words_and_residuals);
    RUN(test_known_words);
    RUN(test_sums);
    RUN(test_sums_do_not_wrap);
    RUN(test_joined);
    RUN(test_topk);
    RUN(test_topk_tells_neighbours_apart);
    RUN(test_topk_sums);
    RUN(test_not_finite);
    RUN(test_scale);
    RUN(test_casts);
    RUN(test_parameters);
    RUN(test_texts);
    RUN(test_nothing_is_lost);
    return check_end("test_codec");
}
