/* Reduce kernels compared with the slow reference: every dtype, op and scale; integers at their
 * limits. */
#include "check.h"

#include "elements.h"
#include "kernels/reduce.h"

enum { MOST = 1009 };

static const struct scaling SCALINGS[] = {OPS(UNSCALED){HVD_SUM, 0.5, 1},
                                          {HVD_SUM, 1, 0.25},
                                          {HVD_SUM, 2, 0.5},
                                          {HVD_AVERAGE, 0.5, 4},
                                          {HVD_SUM, -1, 1},
                                          {HVD_AVERAGE, 1, -0.125},
                                          {HVD_SUM, 0, 1},
                                          {HVD_AVERAGE, 1.5, .75},
                                          {HVD_MIN, -0.5, 4},
                                          {HVD_MAX, 2, -0.25},
                                          {HVD_MAX, 0, 1},
                                          {HVD_PRODUCT, 2, 1},
                                          {HVD_PRODUCT, 1, -0.5}};
enum { NSCALINGS = sizeof SCALINGS / sizeof *SCALINGS };

/* Returns false for scalings that request_check refuses, and for 16-bit floats times 1.5: some of
 * these products are ties, so the results depend on the rounding of a factor. */
static bool allowed(int dtype, struct scaling how) {
    if ((dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16) && how.prescale == 1.5) return false;
    if (dtype == HVD_UINT64 && how.prescale < 0) return false;
    if (dtype == HVD_BOOL && (how.op == HVD_AVERAGE || how.prescale != 1 || how.postscale != 1))
        return false;
    bool takes = op_takes(how.op, dtype);
    REQUIRE(takes == (reduce_kernels((hvd_dtype)dtype, (hvd_op)how.op)->combine != NULL));
    return takes;
}

/* Combines the samples of all ranks with the kernels, as a collective algorithm does; widens scaled
 * samples first. The memory is aligned only to an element and has no spare bytes. */
static void reduce_samples(int dtype, int ranks, struct scaling how, size_t n, void *out) {
    const struct reduce_kernels *k = reduce_kernels((hvd_dtype)dtype, (hvd_op)how.op);
    OWNED unsigned char *in = room(k->size * (n + 1)), *wide = room(k->wide * (n + 1) * 2);
    unsigned char *x = in + k->size, *sum = wide + k->wide, *own = sum + k->wide * n;
    for (int r = 0; r < ranks; r++) {
        for (size_t i = 0; i < n; i++) element_put(dtype, x, i, sample(dtype, how.op, r, i));
        if (r && how.prescale == 1) {
            k->combine(sum, x, n);
        } else {
            k->widen(r ? own : sum, x, n, how.prescale);
            if (r) k->combine_wide(sum, r % 2 ? sum : own, r % 2 ? own : sum, n);
        }
    }
    k->narrow(out, sum, n, (struct reduce_final){how.postscale, how.op == HVD_AVERAGE ? ranks : 1});
}

static void check_samples(int dtype, int ranks, struct scaling how, size_t n) {
    OWNED unsigned char *out = room((n + 1) * dtype_size(dtype));
    unsigned char *o = out + dtype_size(dtype);
    reduce_samples(dtype, ranks, how, n, o);
    for (size_t i = 0; i < n; i++) {
        unsigned char stored[8];
        element_put(dtype, stored, 0, reduced_sample(dtype, ranks, how, i));
        double got = element_get(dtype, o, i), expected = element_get(dtype, stored, 0);
        if (!CHECK_CASE(
                got == expected || fabs(got - expected) <= sample_tolerance(dtype, expected),
                "%s, %d ranks, op %d, scales %g %g, element %zu: got %.17g, expected %.17g",
                dtype_name(dtype), ranks, how.op, how.prescale, how.postscale, i, got, expected))
            break;
    }
}

/* reduce_all gives the same result as the single steps, even if the result replaces an input. */
static void check_all_at_once(int dtype, int ranks, struct scaling how, size_t n) {
    const struct reduce_kernels *k = reduce_kernels((hvd_dtype)dtype, (hvd_op)how.op);
    OWNED unsigned char *memory = room(((size_t)ranks + 1) * n * k->size);
    unsigned char *expected = memory;
    const char *in[9];
    REQUIRE(ranks <= 9);
    for (int r = 0; r < ranks; r++) {
        unsigned char *x = memory + ((size_t)r + 1) * n * k->size;
        for (size_t i = 0; i < n; i++) element_put(dtype, x, i, sample(dtype, how.op, r, i));
        in[r] = (const char *)x;
    }
    reduce_samples(dtype, ranks, how, n, expected);
    void *out = memory + (size_t)(1 + (int)n % ranks) * n * k->size;
    reduce_all(k, out, in, ranks, n, how.prescale,
               (struct reduce_final){how.postscale, how.op == HVD_AVERAGE ? ranks : 1});
    for (size_t i = 0; i < n; i++)
        CHECK_CASE(element_get(dtype, out, i) == element_get(dtype, expected, i),
                   "%s, %d ranks, op %d, scales %g %g, element %zu of %zu", dtype_name(dtype),
                   ranks, how.op, how.prescale, how.postscale, i, n);
}

TEST(test_every_kernel_gives_the_serial_result) {
    static const size_t SIZES[] = {0, 1, 2, 3, 7, 16, 31, 64, 65, MOST};
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++)
        for (int ranks = 1; ranks <= 9; ranks++)
            for (int k = 0; k < NSCALINGS; k++)
                for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++)
                    if (allowed(dtype, SCALINGS[k])) {
                        check_samples(dtype, ranks, SCALINGS[k], SIZES[s]);
                        check_all_at_once(dtype, ranks, SCALINGS[k], SIZES[s]);
                    }
}

/* Returns the result for `ranks` equal integers. */
static int64_t of_equal(int dtype, int ranks, int64_t value, int op) {
    const struct reduce_kernels *k = reduce_kernels((hvd_dtype)dtype, (hvd_op)op);
    int64_t wide = 0, in = 0, out = 0;
    memcpy(&in, &value, k->size);
    k->widen(&wide, &in, 1, 1.0);
    for (int r = 1; r < ranks; r++) k->combine(&wide, &in, 1);
    k->narrow(&out, &wide, 1, (struct reduce_final){1.0, op == HVD_AVERAGE ? ranks : 1});
    switch (dtype) {
    case HVD_UINT8: return (uint8_t)out;
    case HVD_INT8: return (int8_t)out;
    case HVD_INT32: return (int32_t)out;
    case HVD_UINT16: return (uint16_t)out;
    case HVD_UINT32: return (uint32_t)out;
    default: return out;
    }
}

TEST(test_averages_of_extremes_are_exact) {
    static const struct {
        int dtype;
        int64_t value;
    } ROWS[] = {{HVD_INT8, 127},
                {HVD_INT8, -128},
                {HVD_UINT8, 255},
                {HVD_INT32, INT32_MAX},
                {HVD_INT32, INT32_MIN},
                {HVD_INT64, INT64_MAX / 300},
                {HVD_INT64, 1000000007},
                {HVD_INT32, 1},
                {HVD_UINT8, 1},
                {HVD_INT8, -1},
                {HVD_UINT16, 65535},
                {HVD_UINT32, UINT32_MAX},
                {HVD_UINT64, INT64_MAX / 150}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++)
        for (int ranks = 1; ranks <= 300; ranks++) /* 49 * (1.0 / 49) < 1 in double */
            CHECK_INT(of_equal(ROWS[i].dtype, ranks, ROWS[i].value, HVD_AVERAGE), ROWS[i].value);
}

TEST(test_integer_sums_wrap) {
    CHECK_INT(of_equal(HVD_INT8, 2, 127, HVD_SUM), -2);
    CHECK_INT(of_equal(HVD_INT8, 2, -128, HVD_SUM), 0);
    CHECK_INT(of_equal(HVD_UINT8, 3, 200, HVD_SUM), 600 - 512);
    CHECK_INT(of_equal(HVD_INT32, 2, INT32_MAX, HVD_SUM), -2);
    CHECK_INT(of_equal(HVD_INT32, 3, INT32_MIN, HVD_SUM), INT32_MIN);
    CHECK_INT(of_equal(HVD_INT64, 2, INT64_MAX, HVD_SUM), -2);
    CHECK_INT(of_equal(HVD_INT64, 2, INT64_MIN, HVD_SUM), 0);
}

TEST(test_integer_products_wrap) {
    CHECK_INT(of_equal(HVD_INT8, 2, 100, HVD_PRODUCT), 10000 % 256);
    CHECK_INT(of_equal(HVD_UINT8, 5, 3, HVD_PRODUCT), 243);
    CHECK_INT(of_equal(HVD_UINT8, 9, 255, HVD_PRODUCT), 255); /* (-1)^9 */
    CHECK_INT(of_equal(HVD_INT32, 2, INT32_MIN, HVD_PRODUCT), 0);
    CHECK_INT(of_equal(HVD_INT32, 7, -1, HVD_PRODUCT), -1);
    CHECK_INT(of_equal(HVD_INT64, 2, INT64_MAX, HVD_PRODUCT), 1);
}

static uint64_t scaled(uint64_t value, double before, double after) {
    const struct reduce_kernels *k = reduce_kernels(HVD_UINT64, HVD_SUM);
    uint64_t wide = 0, out = 0;
    k->widen(&wide, &value, 1, before);
    k->narrow(&out, &wide, 1, (struct reduce_final){after, 1});
    return out;
}

TEST(test_uint64_above_the_limit_of_int64_is_compared_and_scaled) {
    const uint64_t high = (uint64_t)3 << 62, low = 5;
    const struct reduce_kernels *k = reduce_kernels(HVD_UINT64, HVD_MAX);
    uint64_t wide = low;
    k->combine(&wide, &high, 1);
    CHECK(wide == high);
    CHECK(scaled(high, 0.5, 1) == (uint64_t)3 << 61 && scaled(high, 1, 0.5) == (uint64_t)3 << 61);
    CHECK(scaled(high >> 1, 2, 1) == high && scaled(high, 2, 1) == UINT64_MAX);
    CHECK(scaled(high, NAN, 1) == 0 && scaled(low, -1, 1) == (uint64_t)-5);
}

/* Every byte other than 0 means true, even if bytes are combined without being widened first. */
static void check_truth(int op, const uint8_t *expected) {
    static const uint8_t A[] = {0, 1, 0, 1, 2, 0, 128, 255}, B[] = {0, 0, 1, 1, 0, 4, 64, 255};
    const struct reduce_kernels *k = reduce_kernels(HVD_BOOL, (hvd_op)op);
    uint8_t wide[8], raw[8], out[8];
    k->widen(wide, A, 8, 1.0);
    k->combine(wide, B, 8);
    k->narrow(out, wide, 8, (struct reduce_final){1.0, 1});
    memcpy(raw, A, 8);
    k->combine(raw, B, 8);
    k->combine_wide(wide, A, B, 8);
    for (int i = 0; i < 8; i++) {
        CHECK_INT(out[i], expected[i]);
        CHECK_INT(raw[i], expected[i]);
        CHECK_INT(wide[i], expected[i]);
    }
}

TEST(test_bool_sum_is_or_and_product_is_and) {
    static const uint8_t OR[] = {0, 1, 1, 1, 1, 1, 1, 1}, AND[] = {0, 0, 0, 1, 0, 0, 1, 1};
    check_truth(HVD_SUM, OR);
    check_truth(HVD_MAX, OR);
    check_truth(HVD_MIN, AND);
    check_truth(HVD_PRODUCT, AND);
}

/* If either value is NaN, the result is NaN; infinities compare like numbers. */
static void check_nan(int dtype, int op) {
    static const double A[] = {NAN, 1, NAN, -INFINITY, 1}, B[] = {1, NAN, NAN, INFINITY, -2};
    const struct reduce_kernels *k = reduce_kernels((hvd_dtype)dtype, (hvd_op)op);
    unsigned char a[5 * 8], b[5 * 8], wide[5 * 8], more[5 * 8], out[5 * 8];
    for (size_t i = 0; i < 5; i++) {
        element_put(dtype, a, i, A[i]);
        element_put(dtype, b, i, B[i]);
    }
    for (int way = 0; way < 2; way++) {
        k->widen(wide, a, 5, 1.0);
        k->widen(more, b, 5, 1.0);
        if (way)
            k->combine(wide, b, 5);
        else
            k->combine_wide(wide, wide, more, 5);
        k->narrow(out, wide, 5, (struct reduce_final){1.0, 1});
        for (size_t i = 0; i < 3; i++) CHECK(isnan(element_get(dtype, out, i)));
        CHECK(element_get(dtype, out, 3) == (op == HVD_MIN ? -INFINITY : INFINITY));
        CHECK(element_get(dtype, out, 4) == (op == HVD_MIN ? -2 : 1));
    }
}

TEST(test_nan_wins_in_min_and_max) {
    for (int dtype = HVD_FLOAT16; dtype <= HVD_FLOAT64; dtype++) {
        check_nan(dtype, HVD_MIN);
        check_nan(dtype, HVD_MAX);
    }
}

/* Returns the kernels' result for n 16-bit values. */
static double of_halves(int dtype, int op, const double *values, int n, int64_t divisor) {
    const struct reduce_kernels *k = reduce_kernels((hvd_dtype)dtype, (hvd_op)op);
    uint16_t x, out;
    float wide = 0;
    for (int i = 0; i < n; i++) {
        element_put(dtype, &x, 0, values[i]);
        if (i)
            k->combine(&wide, &x, 1);
        else
            k->widen(&wide, &x, 1, 1.0);
    }
    k->narrow(&out, &wide, 1, (struct reduce_final){1.0, divisor});
    return element_get(dtype, &out, 0);
}

TEST(test_sums_of_16_bit_floats_round_once) {
    /* in 16 bits each product is rounded, and 300 * 300 overflows */
    static const double FACTORS[] = {300, 300, 0x1p-10};
    /* 2048 + 1 in float16, and 256 + 1 in bfloat16, lose the 1 */
    static const double BIG[] = {2048, 1, 1}, OF_BFLOAT[] = {256, 1, 1};
    /* float16 can hold the average, but not the sum */
    static const double LARGE[] = {40000, 40000};
    CHECK_NEAR(of_halves(HVD_FLOAT16, HVD_PRODUCT, FACTORS, 3, 1), 87.875, 0);
    CHECK_NEAR(of_halves(HVD_FLOAT16, HVD_SUM, BIG, 3, 1), 2050, 0);
    CHECK_NEAR(of_halves(HVD_BFLOAT16, HVD_SUM, OF_BFLOAT, 3, 1), 258, 0);
    CHECK_NEAR(of_halves(HVD_FLOAT16, HVD_SUM, LARGE, 2, 2), 40000, 0);
    CHECK(isinf(of_halves(HVD_FLOAT16, HVD_SUM, LARGE, 2, 1)));
}

TEST(test_sums_of_random_float32_are_near_the_exact_sum) {
    const struct reduce_kernels *k = reduce_kernels(HVD_FLOAT32, HVD_SUM);
    float x[3][MOST], wide[MOST], out[MOST];
    uint64_t random = 5;
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < MOST; i++) x[r][i] = (float)random_unit(&random);
    k->widen(wide, x[0], MOST, 0.3);
    k->combine(wide, x[1], MOST);
    k->combine(wide, x[2], MOST);
    k->narrow(out, wide, MOST, (struct reduce_final){0.7, 3});
    for (int i = 0; i < MOST; i++) {
        double sum = (double)x[0][i] * 0.3 + (double)x[1][i] + (double)x[2][i];
        CHECK_NEAR((double)out[i], sum * 0.7 / 3, 4 * 0x1p-24);
    }
}
