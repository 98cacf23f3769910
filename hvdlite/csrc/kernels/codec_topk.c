/* The codec that sends only the largest values of a tensor. */
#include "kernels/codec.h"

#include "base/floats.h"
#include "kernels/half.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A radix selection: compares magnitudes as 31-bit integers, in digits of 11, 11 and 9 bits. */
enum { DIGITS = 3, DIGIT = 2048 };
static const int SHIFT[DIGITS] = {20, 9, 0}, BITS[DIGITS] = {11, 11, 9};

static uint32_t magnitude(float x) { return bits_of_float(x) & 0x7fffffffu; }

size_t codec_topk_count(double ratio, size_t n) {
    double k = ceil(ratio * (double)n);
    return k < (double)n ? (size_t)k : n;
}

SIMD static void add_scaled(float *restrict residual, const float *restrict in, float scale,
                            size_t n) {
    for (size_t i = 0; i < n; i++) residual[i] += in[i] * scale;
}

/* The candidates for the k values of largest magnitude, and what decides among them. */
struct choice {
    const float *values;
    uint32_t *index; /* array of count, in rising order */
    size_t count;
    uint32_t least; /* the smallest magnitude that is sent */
    size_t equal;   /* of the values with magnitude `least`, the first `equal` values are sent */
};

static size_t histogram_of_all(const float *values, size_t n, size_t wanted, uint32_t *least) {
    uint32_t bins[DIGIT] = {0};
    for (size_t i = 0; i < n; i++) bins[magnitude(values[i]) >> SHIFT[0]]++;
    size_t bin = DIGIT, found = 0;
    while (found < wanted) found += bins[--bin];
    *least = (uint32_t)bin << SHIFT[0];
    return found;
}

/* Lists the c->count values that are not below `least`. The loop has no branch, so it also writes
 * one entry past the end. */
static void list_candidates(struct choice *c, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        c->index[at] = (uint32_t)i;
        at += magnitude(c->values[i]) >= c->least;
    }
}

/* Finds one more digit of c->least. Of the values whose first digits equal the known digits of
 * c->least, *wanted are sent. The call updates *wanted for the new digit. */
static void find_digit(struct choice *c, int digit, size_t *wanted) {
    uint32_t bins[DIGIT] = {0}, mask = (1u << BITS[digit]) - 1, known = ~0u << SHIFT[digit - 1];
    for (size_t j = 0; j < c->count; j++) {
        uint32_t m = magnitude(c->values[c->index[j]]);
        bins[m >> SHIFT[digit] & mask] += (m & known) == c->least;
    }
    uint32_t bin = mask;
    for (; bins[bin] < *wanted; bin--) *wanted -= bins[bin];
    c->least |= bin << SHIFT[digit];
}

/* Returns the number of candidates whose first digit is above that of `least`; all are sent. */
static size_t count_larger(const struct choice *c) {
    size_t larger = 0;
    uint32_t next = c->least + (1u << SHIFT[0]);
    for (size_t j = 0; j < c->count; j++) larger += magnitude(c->values[c->index[j]]) >= next;
    return larger;
}

static void move_values(const struct choice *c, float *residual, size_t k, uint32_t *index) {
    char *values = (char *)(index + k);
    size_t at = 0, equal = c->equal;
    for (size_t j = 0; at < k; j++) {
        uint32_t i = c->index[j], m = magnitude(residual[i]);
        if (m < c->least || (m == c->least && equal == 0)) continue;
        equal -= m == c->least;
        index[at] = i;
        memcpy(values + sizeof(float) * at++, &residual[i], sizeof(float));
        residual[i] = 0;
    }
}

int codec_topk_encode(struct codec c, const float *in, float scale, float *residual, size_t n,
                      uint32_t *pairs, hvd_error *err) {
    size_t k = codec_topk_count(c.parameter, n);
    if (!k) return HVD_OK;
    struct choice choice = {.values = residual, .index = malloc((n + 1) * sizeof *choice.index)};
    if (!choice.index) /* returns before the residual changes */
        return error_set(err, HVD_NO_MEMORY, "no memory to choose %zu of %zu values", k, n);
    add_scaled(residual, in, scale, n);
    choice.count = histogram_of_all(residual, n, k, &choice.least);
    list_candidates(&choice, n);
    choice.equal = k - count_larger(&choice);
    for (int digit = 1; digit < DIGITS; digit++) find_digit(&choice, digit, &choice.equal);
    move_values(&choice, residual, k, pairs);
    free(choice.index);
    return HVD_OK;
}

static uint32_t index_at(const char *indices, size_t j) {
    uint32_t i;
    memcpy(&i, indices + j * sizeof i, sizeof i);
    return i;
}

/* Returns the position of the first index that is not below `least`; k: there is none. */
static size_t find_index(const char *indices, size_t k, size_t least) {
    size_t low = 0, high = k;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (index_at(indices, middle) < least)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Checks every index, because a damaged message may have any indices in any order. */
void codec_topk_decode(struct codec c, const char *pairs, size_t stride, struct codec_sum spec,
                       float *out, struct codec_part part) {
    size_t k = codec_topk_count(c.parameter, part.n), n = part.end - part.begin;
    float level = (float)spec.factor;
    if (n) memset(out + part.begin, 0, n * sizeof *out);
    for (int r = 0; r < spec.ranks; r++) {
        const char *indices = pairs + (size_t)r * stride, *values = indices + k * sizeof(uint32_t);
        size_t last = find_index(indices, k, part.end);
        for (size_t j = find_index(indices, k, part.begin); j < last; j++) {
            uint32_t i = index_at(indices, j);
            float x;
            memcpy(&x, values + j * sizeof x, sizeof x);
            if (i >= part.begin && i < part.end) out[i] += x * level;
        }
    }
}
