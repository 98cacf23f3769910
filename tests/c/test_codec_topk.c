/* Topk against a slow model: which values are sent, and what is left of each. */
#include "codec_case.h"

#include <sys/resource.h>

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

/* `levels`: how many different magnitudes there are; few make ties. */
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
        OK(codec_encode(c, in, 1, residual, n, message, ERR));
        check_topk_message(message, r, residual, n, codec_topk_count(ratio, n));
    }
}

TEST(test_the_largest_values_are_sent) {
    static const double RATIOS[] = {1e-9, 0.01, 0.1, 0.5, 0.999, 1};
    for (size_t k = 0; k < sizeof RATIOS / sizeof *RATIOS; k++) {
        for (size_t s = 0; s < CODEC_NSIZES - 1; s++) {
            check_topk(RATIOS[k], CODEC_SIZES[s], 1e6);
            check_topk(RATIOS[k], CODEC_SIZES[s], 2);
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
TEST(test_topk_tells_neighbours_apart) {
    float in[3] = {1, nextafterf(1, 2), -nextafterf(1, 0)}, residual[3] = {0}, out[3];
    float small[3] = {1e-44f, -3e-44f, 2e-44f};
    uint8_t message[12];
    OK(codec_encode(TOPK, in, 1, residual, 3, message, ERR));
    codec_decode(TOPK, message, sizeof message, (struct codec_sum){1, 1, 1}, out, 3);
    CHECK(out[0] == 0 && out[1] == in[1] && out[2] == 0);
    CHECK(residual[0] == in[0] && residual[1] == 0 && residual[2] == in[2]);
    memset(residual, 0, sizeof residual);
    OK(codec_encode(TOPK, small, 1, residual, 3, message, ERR));
    codec_decode(TOPK, message, sizeof message, (struct codec_sum){1, 1, 1}, out, 3);
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
        codec_decode(TOPK, messages, bytes, (struct codec_sum){p, p, 1.0 / p}, out, n);
        CHECK(memcmp(out, expected, sizeof out) == 0);
        uint32_t wild = 4000000000u; /* damaged: nothing outside is written to */
        memcpy(messages + 4, &wild, 4);
        codec_decode(TOPK, messages, bytes, (struct codec_sum){p, p, 1}, out, n);
    }
}

TEST(test_without_memory_the_residual_stays) {
    const size_t n = 9 << 20; /* glibc takes the memory for such a choice from the kernel */
    if (CHECK_SLOW) return;   /* a sanitizer ends the program */
    OWNED float *in = room(n * 4), *residual = room(n * 4);
    OWNED uint8_t *message = room(codec_bytes(TOPK, n));
    struct rlimit old;
    in[1] = 1;
    getrlimit(RLIMIT_AS, &old);
    setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_max = old.rlim_max});
    FAILS(codec_encode(TOPK, in, 1, residual, n, message, ERR), HVD_NO_MEMORY);
    setrlimit(RLIMIT_AS, &old);
    CHECK(residual[1] == 0);
}
