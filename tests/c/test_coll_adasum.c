/* Adasum on 1 to 9 ranks equals the paper's formula in double, and all ranks get the same bits. */
#include "coll_case.h"

enum { MOST = 1009 };

/* The vectors of the ranks. */
enum shape { RANDOM, EQUAL, ORTHOGONAL, SOME_ZERO, ALL_ZERO, SHAPES };

static double value(enum shape shape, int rank, size_t i) {
    uint64_t seed = i * 16 + (shape == EQUAL ? 0 : (uint64_t)rank) + 1;
    double real = random_unit(&seed);
    if (shape == ALL_ZERO || (shape == SOME_ZERO && rank % 2)) return 0;
    if (shape == ORTHOGONAL && i % MOST_RANKS != (size_t)rank) return 0;
    return real;
}

/* Computes a = Adasum(a, b). */
static void combine(double *a, const double *b, size_t n) {
    double aa = 0, bb = 0, ab = 0;
    for (size_t i = 0; i < n; i++) {
        aa += a[i] * a[i];
        bb += b[i] * b[i];
        ab += a[i] * b[i];
    }
    double x = aa > 0 ? 1 - ab / (2 * aa) : 1, y = bb > 0 ? 1 - ab / (2 * bb) : 1;
    for (size_t i = 0; i < n; i++) a[i] = x * a[i] + y * b[i];
}

/* Computes the result in v[0]: pairs combine until a power of two is left, then neighbors
 * combine. */
static void model(double v[MOST_RANKS][MOST], int ranks, size_t n) {
    int places = 1;
    while (2 * places <= ranks) places *= 2;
    int paired = ranks - places;
    for (int i = 0; i < places; i++) {
        int from = i < paired ? 2 * i : i + paired;
        if (from != i) memcpy(v[i], v[from], n * sizeof *v[0]);
        if (i < paired) combine(v[i], v[from + 1], n);
    }
    for (; places > 1; places /= 2)
        for (int i = 0; i < places / 2; i++) {
            if (i) memcpy(v[i], v[2 * i], n * sizeof *v[0]);
            combine(v[i], v[2 * i + 1], n);
        }
}

/* Sorts the vectors by host, because ranks combine host by host. */
static void sort_by_host(struct coll_rank *self, double v[MOST_RANKS][MOST], size_t n) {
    static _Thread_local double sorted[MOST_RANKS][MOST];
    const struct layout *l = &rank_transport(self->ranks, self->rank)->layout;
    int ranks = self->ranks->size, place = 0;
    for (int h = 0; h < l->hosts; h++)
        for (int r = 0; r < ranks; r++)
            if (l->host_of[r] == h) memcpy(sorted[place++], v[r], n * sizeof *v[0]);
    for (int r = 0; r < ranks; r++) memcpy(v[r], sorted[r], n * sizeof *v[0]);
}

static double rounding(int dtype) {
    if (dtype == HVD_FLOAT16) return 0x1p-10;
    if (dtype == HVD_BFLOAT16) return 0x1p-7;
    return dtype == HVD_FLOAT32 ? 0x1p-20 : 0x1p-48;
}

static void check_adasum_case(struct coll_rank *self, enum shape shape, int dtype, size_t n,
                              double prescale, double postscale) {
    static _Thread_local double vectors[MOST_RANKS][MOST];
    int ranks = self->ranks->size;
    size_t element = dtype_size(dtype), bytes = n * element;
    OWN(slab_free) struct slab slab = slab_new(bytes, element);
    for (int r = 0; r < ranks; r++) {
        unsigned char rounded[8]; /* the value, rounded to the dtype */
        for (size_t i = 0; i < n; i++) {
            element_put(dtype, rounded, 0, value(shape, r, i));
            vectors[r][i] = element_get(dtype, rounded, 0) * prescale;
            if (r == self->rank) memcpy(slab.data + i * element, rounded, element);
        }
    }
    sort_by_host(self, vectors, n);
    model(vectors, ranks, n);
    struct coll_case c = {
        .kind = HVD_ALLREDUCE, .dtype = dtype, .n = n, .how = {HVD_ADASUM, prescale, postscale}};
    struct coll_args args = {.data = slab.data, .bytes = bytes};
    int code = case_run(self, &c, &args, ERR);
    bool good = true;
    for (size_t i = 0; i < n; i++) {
        double expected = vectors[0][i] * postscale, got = element_get(dtype, slab.data, i);
        good &= fabs(got - expected) <= rounding(dtype) * (fabs(expected) + fabs(postscale));
    }
    check_result(self, &c, good && same_on_all(self, slab.data, bytes), code, ERR);
}

static void adasum_cases(struct coll_rank *self) {
    size_t p = (size_t)self->ranks->size;
    const size_t sizes[] = {1, 2, p - 1, p, p + 1, 61, MOST};
    for (int shape = 0; shape < SHAPES; shape++)
        for (int dtype = HVD_FLOAT16; dtype <= HVD_FLOAT64; dtype++)
            for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
                check_adasum_case(self, (enum shape)shape, dtype, sizes[s], 1, 1);
    check_adasum_case(self, RANDOM, HVD_FLOAT32, 100, 0.5, 3);
    check_adasum_case(self, RANDOM, HVD_FLOAT16, 100, -2, 0.25);
}

TEST(test_adasum_equals_the_formula_of_the_paper) {
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, adasum_cases);
}

/* With infinities and NaNs any result is right if all ranks have the same bits. */
static void unruly(struct coll_rank *self) {
    for (int dtype = HVD_FLOAT16; dtype <= HVD_FLOAT64; dtype++) {
        unsigned char data[64 * 8];
        uint64_t random = (uint64_t)self->rank + 5;
        for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)random_next(&random);
        memset(data, 0xff, 16);
        struct coll_case c = {
            .kind = HVD_ALLREDUCE, .dtype = dtype, .n = 64, .how = {HVD_ADASUM, 1, 1}};
        struct coll_args args = {.data = data, .bytes = 64 * dtype_size(dtype)};
        int code = case_run(self, &c, &args, ERR);
        check_result(self, &c, same_on_all(self, data, args.bytes), code, ERR);
    }
}

TEST(test_infinities_and_nans_give_the_same_bits_on_all_ranks) {
    for (int p = 2; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, unruly);
}

TEST(test_adasum_sends_vectors_in_segments) {
    coll_cases_run_at(2, (struct pace){64, 1}, adasum_cases);
    coll_cases_run_at(CHECK_SLOW ? 3 : 7, (struct pace){1024, 5}, adasum_cases);
}

TEST(test_adasum_is_right_on_several_hosts) { coll_cases_run_on_hosts(adasum_cases, PLACEMENTS); }
