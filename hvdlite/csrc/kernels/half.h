/* float16 and bfloat16 to and from float32, by bit arithmetic.
 *
 * No branch and no table, so the compiler vectorizes loops over these functions. Conversions to
 * 16 bits round to nearest, ties to even; NaN stays NaN, overflow becomes infinity. */
#ifndef HVDLITE_KERNELS_HALF_H
#define HVDLITE_KERNELS_HALF_H

#include <stdint.h>
#include <string.h>

static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float float_of_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = (uint32_t)(h & 0x7fffu) << 13;
    /* The shifted exponent is too low by 127 - 15. Multiplying by 2^112 corrects the exponent, also
     * of denormals. */
    uint32_t scaled = bits_of_float(float_of_bits(rest) * 0x1p112f);
    uint32_t special = rest | 0x7f800000u; /* infinity and NaN: the exponent stays all ones */
    return float_of_bits(sign | (rest >= 0x0f800000u ? special : scaled));
}

static inline uint16_t half_of_float(float f) {
    uint32_t bits = bits_of_float(f), sign = bits & 0x80000000u, rest = bits ^ sign;
    /* Normal numbers: move the exponent, then round to nearest. 0x1000 is half of the last kept
     * bit; a tie is rounded up if the last kept bit is 1. */
    uint32_t normal = (rest - ((127u - 15u) << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;
    /* Denormals (below 2^-14): add 0.5, so that the processor rounds at the right bit. */
    uint32_t denormal = bits_of_float(float_of_bits(rest) + 0.5f) - 0x3f000000u;
    uint32_t special = rest > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t h = rest < 0x38800000u ? denormal : normal;
    h = rest >= 0x47800000u ? special : h; /* from 2^16 on `normal` has overflowed */
    return (uint16_t)(h | sign >> 16);
}

static inline float float_of_bfloat(uint16_t b) { return float_of_bits((uint32_t)b << 16); }

static inline uint16_t bfloat_of_float(float f) {
    uint32_t bits = bits_of_float(f);
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    uint32_t quiet = (bits >> 16) | 0x40u;
    return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

#endif
