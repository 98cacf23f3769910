/* Update rules give the same bits as a plain loop, for any beginning and end of the range. float16
 * and bfloat16 values equal those of slow arithmetic in double. */
#include "check.h"

#include "kernels/half.h"
#include "kernels/update.h"

enum { MOST = 103 };

struct model {
    float w[MOST], v[MOST], s[MOST];
};

static float clipped(float x, float limit) {
    if (limit < 0) return x;
    return x > limit ? limit : x < -limit ? -limit : x;
}

/* Computes one value with the formulas of MXNet's operators. */
static void expect(const hvd_update *u, struct model *m, int i, float gradient) {
    const float *r = u->rates;
    float lr = r[HVD_LEARNING_RATE], wd = r[HVD_WEIGHT_DECAY], mu = r[HVD_MOMENTUM],
          limit = r[HVD_CLIP], scaled = r[HVD_RESCALE] * gradient;
    /* volatile, so that each product is rounded as written here */
    volatile float decay = lr * wd * m->w[i];
    volatile float pull = limit < 0 ? lr * r[HVD_RESCALE] * gradient : lr * clipped(scaled, limit);
    if (u->rule == HVD_SGD) {
        volatile float step = -decay - pull;
        m->w[i] += step;
    } else if (u->rule == HVD_SGD_MOMENTUM) {
        volatile float kept = mu * m->v[i], less = kept - decay;
        m->v[i] = less - pull;
        m->w[i] += m->v[i];
    } else if (u->rule == HVD_NAG) {
        volatile float old = mu * m->v[i], g = clipped(scaled, limit) + wd * m->w[i];
        volatile float ahead = (mu + 1) * (old - lr * g), back = m->w[i] - old;
        m->w[i] = back + ahead;
        volatile float again = clipped(scaled, limit) + wd * m->w[i];
        m->v[i] = old - lr * again;
    } else {
        volatile float g = clipped(scaled + wd * m->w[i], limit), beta2 = r[HVD_BETA2];
        volatile float square = (1 - beta2) * g * g;
        m->v[i] = mu * m->v[i] + (1 - mu) * g;
        m->s[i] = beta2 * m->s[i] + square;
        volatile float step = lr * m->v[i] / (sqrtf(m->s[i]) + r[HVD_EPSILON]);
        m->w[i] -= step;
    }
}

static void start(struct model *m) {
    for (int i = 0; i < MOST; i++) {
        m->w[i] = (float)(i % 13) * 0.3f - 1;
        m->v[i] = (float)(i % 7) * 0.1f - 0.2f;
        m->s[i] = (float)(i % 5) * 0.01f;
    }
}

static void check_rule(int rule, float limit, size_t at, size_t n) {
    struct model got, expected;
    float gradient[MOST];
    hvd_update u = {.rule = rule, .weights = got.w, .states = {got.v, got.s}};
    u.rates[HVD_LEARNING_RATE] = 0.1f;
    u.rates[HVD_WEIGHT_DECAY] = 0.01f;
    u.rates[HVD_RESCALE] = 0.3f;
    u.rates[HVD_CLIP] = limit;
    u.rates[HVD_MOMENTUM] = 0.9f;
    u.rates[HVD_BETA2] = 0.999f;
    u.rates[HVD_EPSILON] = 1e-8f;
    start(&got);
    start(&expected);
    for (int step = 0; step < 3; step++) {
        for (size_t i = 0; i < n; i++) gradient[i] = (float)((at + i) % 11) * 0.2f - 1;
        update_apply(&u, gradient, at, n);
        for (size_t i = 0; i < n; i++) expect(&u, &expected, (int)(at + i), gradient[i]);
    }
    CHECK_CASE(memcmp(&got, &expected, sizeof got) == 0, "%s, clip %g, %zu values from %zu",
               rule_name(rule), limit, n, at);
}

TEST(test_each_optimizer_rule_updates_the_weights_and_states) {
    static const size_t RANGES[][2] = {{0, 0},  {0, 1},   {3, 1},  {0, 16},
                                       {5, 33}, {1, 102}, {0, 103}};
    for (int rule = HVD_SGD; rule < HVD_RULES; rule++)
        for (size_t i = 0; i < sizeof RANGES / sizeof *RANGES; i++) {
            check_rule(rule, -1, RANGES[i][0], RANGES[i][1]);
            check_rule(rule, 0.2f, RANGES[i][0], RANGES[i][1]);
        }
}

TEST(test_a_gradient_that_is_no_number_reaches_the_weight) {
    for (int rule = HVD_SGD; rule < HVD_RULES; rule++)
        for (float limit = -1; limit <= 1; limit += 2) {
            float w = 1, v = 0, s = 0, gradient = NAN;
            hvd_update u = {.rule = rule, .weights = &w, .states = {&v, &s}};
            u.rates[HVD_LEARNING_RATE] = u.rates[HVD_RESCALE] = 1;
            u.rates[HVD_CLIP] = limit;
            update_apply(&u, &gradient, 0, 1);
            CHECK_CASE(isnan(w), "%s, clip %g", rule_name(rule), limit);
        }
}

/* ---- 16-bit floats ---- */

struct format {
    const char *name;
    int fraction, lowest, highest; /* bits of the fraction; exponents of normal numbers */
    uint16_t (*of_float)(float);
    float (*to_float)(uint16_t);
};

static const struct format FORMATS[] = {
    {"float16", 10, -14, 15, half_of_float, float_of_half},
    {"bfloat16", 7, -126, 127, bfloat_of_float, float_of_bfloat},
};
enum { NFORMATS = sizeof FORMATS / sizeof *FORMATS };

/* Returns the value of 16 bits, by the definition of the format. */
static double slow_value(const struct format *f, uint16_t bits) {
    int exponent = (bits & 0x7fff) >> f->fraction, fraction = bits & ((1 << f->fraction) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == f->highest - f->lowest + 2) return fraction ? (double)NAN : sign * HUGE_VAL;
    int hidden = exponent ? 1 << f->fraction : 0;
    int shift = f->lowest - f->fraction + (exponent ? exponent - 1 : 0);
    return sign * ldexp(hidden + fraction, shift);
}

/* Returns the nearest value of the format, ties to even, which is rint's default. */
static double slow_round(const struct format *f, double x) {
    if (x == 0 || isnan(x) || isinf(x)) return x;
    int exponent = ilogb(x) > f->lowest ? ilogb(x) : f->lowest;
    double quantum = ldexp(1, exponent - f->fraction), y = rint(x / quantum) * quantum;
    return fabs(y) >= ldexp(1, f->highest + 1) ? copysign(HUGE_VAL, x) : y;
}

static bool same_value(double a, double b) {
    return isnan(a) ? isnan(b) : a == b && !signbit(a) == !signbit(b);
}

static void check_float(const struct format *f, float x) {
    double got = slow_value(f, f->of_float(x)), expected = slow_round(f, (double)x);
    CHECK_CASE(same_value(got, expected), "%s of %a: got %a, expected %a", f->name, (double)x, got,
               expected);
}

TEST(test_every_16_bit_value_survives_a_round_trip) {
    for (int i = 0; i < NFORMATS; i++) {
        const struct format *f = &FORMATS[i];
        for (uint32_t bits = 0; bits <= 0xffff; bits++) {
            float value = f->to_float((uint16_t)bits);
            CHECK_CASE(same_value((double)value, slow_value(f, (uint16_t)bits)), "%s %04x", f->name,
                       bits);
            uint16_t back = f->of_float(value);
            CHECK_CASE(isnan(value) ? isnan(f->to_float(back)) : back == bits,
                       "%s %04x came back as %04x", f->name, bits, back);
        }
    }
}

/* Checks the middle between every two neighbors, and the floats next to it. */
TEST(test_ties_round_to_even) {
    for (int i = 0; i < NFORMATS; i++) {
        const struct format *f = &FORMATS[i];
        uint16_t infinity = (uint16_t)((f->highest - f->lowest + 2) << f->fraction);
        for (uint16_t bits = 0; bits < infinity; bits++) {
            double above = bits + 1 == infinity ? ldexp(1, f->highest + 1)
                                                : slow_value(f, (uint16_t)(bits + 1));
            float middle = (float)((slow_value(f, bits) + above) / 2);
            float near[] = {middle, nextafterf(middle, 0), nextafterf(middle, HUGE_VALF)};
            for (int k = 0; k < 3; k++) {
                check_float(f, near[k]);
                check_float(f, -near[k]);
            }
        }
    }
}

TEST(test_a_nan_stays_a_nan) {
    static const uint32_t NANS[] = {0x7f800001, 0x7fc00000, 0x7fffffff, 0xff800001,
                                    0xffffffff, 0x7f801fff, 0x7f80ffff};
    for (int i = 0; i < NFORMATS; i++)
        for (size_t k = 0; k < sizeof NANS / sizeof *NANS; k++)
            CHECK(isnan(FORMATS[i].to_float(FORMATS[i].of_float(float_of_bits(NANS[k])))));
}
