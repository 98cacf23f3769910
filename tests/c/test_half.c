/* float16 and bfloat16 against slow arithmetic in double that knows only the formats' three
 * numbers. */
#include "check.h"

#include "kernels/half.h"

struct format {
    const char *name;
    int fraction, lowest, highest; /* bits; least and greatest exponent of a normal number */
    uint16_t (*of_float)(float);
    float (*to_float)(uint16_t);
};

static const struct format FORMATS[] = {
    {"float16", 10, -14, 15, half_of_float, float_of_half},
    {"bfloat16", 7, -126, 127, bfloat_of_float, float_of_bfloat},
};
enum { NFORMATS = sizeof FORMATS / sizeof *FORMATS };

/* The value of 16 bits, from the definition of the format. */
static double slow_value(const struct format *f, uint16_t bits) {
    int exponent = (bits & 0x7fff) >> f->fraction, fraction = bits & ((1 << f->fraction) - 1);
    double sign = bits & 0x8000 ? -1 : 1;
    if (exponent == f->highest - f->lowest + 2) return fraction ? (double)NAN : sign * HUGE_VAL;
    int hidden = exponent ? 1 << f->fraction : 0;
    int shift = f->lowest - f->fraction + (exponent ? exponent - 1 : 0);
    return sign * ldexp(hidden + fraction, shift);
}

/* The nearest value of the format, ties to even; rint rounds so by default. */
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

/* The middle between every two neighbours, and the floats beside it. */
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
