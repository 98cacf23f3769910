/* Reducescatter and alltoall: all algorithms, dtypes and ops, 1 to 9 ranks, uneven, empty parts. */
#include "coll_case.h"

static const struct scaling SCALINGS[] = {
    {HVD_SUM, 1, 1},     {HVD_AVERAGE, 1, 1},   {HVD_MIN, 1, 1},   {HVD_MAX, 2, -0.5},
    {HVD_PRODUCT, 1, 1}, {HVD_AVERAGE, 0.5, 4}, {HVD_SUM, 2, 0.25}};
enum { NSCALINGS = sizeof SCALINGS / sizeof *SCALINGS };

static void scatter(struct coll_rank *self, int dtype, size_t rows, size_t n, int scaling) {
    struct scaling how = SCALINGS[scaling % NSCALINGS];
    if (dtype == HVD_BOOL) how = (struct scaling){how.op == HVD_AVERAGE ? HVD_SUM : how.op, 1, 1};
    check_rows(self,
               (struct coll_case){
                   .kind = HVD_REDUCESCATTER, .dtype = dtype, .rows = rows, .n = n, .how = how});
}

static void small_scatters(struct coll_rank *self) {
    size_t p = (size_t)self->ranks->size;
    const size_t rows[] = {0, 1, p - 1, p, p + 1, 2 * p + 1, 61, 1009};
    int turn = 0; /* over the sizes, every scaling comes to every dtype */
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++)
        for (size_t s = 0; s < sizeof rows / sizeof *rows; s++, turn++)
            scatter(self, dtype, rows[s], turn % 3 ? 1 : (size_t)turn % 2 * 5, turn);
}

TEST(test_small_reducescatter) {
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, small_scatters);
}

static void every_scaling(struct coll_rank *self) {
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++)
        for (int k = 0; k < NSCALINGS; k += 1 + CHECK_SLOW) scatter(self, dtype, 127, 2, k);
}

TEST(test_every_scaling) {
    coll_cases_run(1, every_scaling);
    coll_cases_run(3, every_scaling);
    coll_cases_run(4, every_scaling);
}

/* Parts of about one segment, of a few, and of a million elements in all. */
static void long_scatters(struct coll_rank *self) {
    static const int DTYPES[] = {HVD_FLOAT32, HVD_INT8, HVD_BFLOAT16};
    size_t p = (size_t)self->ranks->size;
    for (int d = 0; d < (CHECK_SLOW ? 1 : 3); d++) {
        size_t segment = PACE_DEFAULT.segment / dtype_size(DTYPES[d]);
        scatter(self, DTYPES[d], segment * p - 1, 1, d);
        scatter(self, DTYPES[d], segment * p + 1, 1, d + 1);
        scatter(self, DTYPES[d], p + 1, 2 * segment + 1, d + 2);
        scatter(self, DTYPES[d], 1000003, 1, d);
    }
}

TEST(test_long_reducescatter) {
    coll_cases_run(1, long_scatters);
    coll_cases_run(2, long_scatters);
    coll_cases_run(CHECK_SLOW ? 3 : 5, long_scatters);
}

/* The window adds in the order of ranks, so that sums of reals have the bits of an allreduce. */
static void same_bits(struct coll_rank *self) {
    enum { N = 999 };
    int ranks = self->ranks->size;
    float in[N], all[N], part[N];
    uint64_t random = (uint64_t)self->rank + 33;
    for (int i = 0; i < N; i++) all[i] = in[i] = (float)random_unit(&random);
    size_t in_end[MOST_RANKS];
    for (int r = 0; r < ranks; r++) in_end[r] = coll_chunk(sizeof in, sizeof *in, ranks, r).end;
    struct coll_range own = coll_part(in_end, self->rank);
    struct coll_case c = {.kind = HVD_ALLREDUCE, .dtype = HVD_FLOAT32, .how = {HVD_AVERAGE, 3, 1}};
    struct coll_args reduce = {.data = all, .bytes = sizeof all};
    struct coll_args scattered = {.data = part, .bytes = sizeof in, .in = in, .in_end = in_end};
    scattered.longest = longest_part(in_end, ranks);
    OK(case_run(self, &c, &reduce, ERR));
    c.kind = HVD_REDUCESCATTER;
    OK(case_run(self, &c, &scattered, ERR));
    if (rank_comm(self->ranks, self->rank)->window)
        CHECK(memcmp((char *)all + own.begin, part, coll_length(own)) == 0);
}

TEST(test_same_bits_as_an_allreduce) {
    for (int p = 2; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, same_bits);
}

/* Units from rank to rank: equal, none, to itself, to one, from one, uneven, one long. */
enum { SHAPES = 7, LONG = 40 };

static size_t units(int shape, int ranks, int from, int to) {
    const size_t of_shape[SHAPES] = {1,
                                     0,
                                     from == to,
                                     to == ranks / 2,
                                     from == ranks - 1,
                                     (size_t)((from * 3 + to) % 4),
                                     from == 0 && to == ranks - 1 ? LONG : 1};
    return of_shape[shape];
}

static void exchange(struct coll_rank *self, int dtype, size_t n) {
    int ranks = self->ranks->size;
    for (int shape = 0; shape < SHAPES; shape++) {
        size_t parts[MOST_RANKS * MOST_RANKS];
        for (int i = 0; i < ranks * ranks; i++)
            parts[i] = units(shape, ranks, i / ranks, i % ranks);
        check_rows(
            self, (struct coll_case){.kind = HVD_ALLTOALL, .dtype = dtype, .n = n, .parts = parts});
    }
}

/* Of the dtype only the size of an element matters. */
static void small_exchanges(struct coll_rank *self) {
    static const size_t SIZES[] = {1, 61, 1009};
    static const int DTYPES[] = {HVD_FLOAT64, HVD_UINT8, HVD_FLOAT16};
    for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) exchange(self, DTYPES[s], SIZES[s]);
}

TEST(test_small_alltoall) {
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, small_exchanges);
}

/* Parts of about one segment and more; the longest shape has many. */
static void long_exchanges(struct coll_rank *self) {
    size_t segment = PACE_DEFAULT.segment / sizeof(double);
    for (size_t more = CHECK_SLOW; more < 3; more++)
        exchange(self, HVD_FLOAT64, segment + more - 1);
    if (!CHECK_SLOW) exchange(self, HVD_UINT8, 1000003);
}

TEST(test_long_alltoall) {
    coll_cases_run(2, long_exchanges);
    if (!CHECK_SLOW) coll_cases_run(4, long_exchanges);
}

TEST(test_on_hosts) {
    coll_cases_run_on_hosts(small_scatters, PLACEMENTS);
    coll_cases_run_on_hosts(small_exchanges, PLACEMENTS);
}
