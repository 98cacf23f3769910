/* Allreduce: every algorithm and dtype, 1 to 9 ranks, equal to the serial result on every rank. */
#include "coll_case.h"

static const struct scaling SCALINGS[] = {
    {HVD_SUM, 1, 1},        {HVD_AVERAGE, 1, 1}, {HVD_SUM, 0.5, 1},   {HVD_AVERAGE, 0.5, 4},
    {HVD_MIN, 1, 1},        {HVD_MAX, 1, 1},     {HVD_PRODUCT, 1, 1}, {HVD_MIN, 2, -0.5},
    {HVD_PRODUCT, 2, 0.25}, {HVD_SUM, 2, 0.25}};
enum { NSCALINGS = sizeof SCALINGS / sizeof *SCALINGS };

static struct coll_case allreduce(int dtype, size_t n, int scaling) {
    struct scaling how = SCALINGS[scaling % NSCALINGS];
    if (dtype == HVD_BOOL) how = (struct scaling){how.op == HVD_AVERAGE ? HVD_SUM : how.op, 1, 1};
    return (struct coll_case){.kind = HVD_ALLREDUCE, .dtype = dtype, .n = n, .how = how};
}

static void small_cases(struct coll_rank *self) {
    size_t p = (size_t)self->ranks->size;
    const size_t sizes[] = {0, 1, p - 1, p, p + 1, 2 * p + 1, 61, 1009, 5003};
    int turn = 0; /* over the sizes, every scaling comes to every dtype */
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s += 1 + CHECK_SLOW)
            check_rows(self, allreduce(dtype, sizes[s], turn++));
}

TEST(test_small) {
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, small_cases);
}

static void scaled_cases(struct coll_rank *self) {
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++)
        for (int k = 0; k < NSCALINGS; k += 1 + CHECK_SLOW)
            check_rows(self, allreduce(dtype, 127, k));
}

TEST(test_every_scaling) {
    coll_cases_run(1, scaled_cases);
    coll_cases_run(3, scaled_cases);
    coll_cases_run(4, scaled_cases);
}

/* Chunks, and whole data, of about one segment, a window of them, and one more. */
static void segment_cases(struct coll_rank *self) {
    static const int DTYPES[] = {HVD_INT8, HVD_FLOAT32, HVD_BFLOAT16};
    static const size_t SEGMENTS[] = {1, 5, 4};
    size_t p = (size_t)self->ranks->size;
    int most = CHECK_SLOW ? 2 : 3;
    for (int d = CHECK_SLOW; d < most; d++) {
        for (int k = 0; k < most; k++) {
            size_t n = SEGMENTS[k] * PACE_DEFAULT.segment / dtype_size(DTYPES[d]);
            check_rows(self, allreduce(DTYPES[d], n + 1, k));
            check_rows(self, allreduce(DTYPES[d], n * p - 1, k));
            check_rows(self, allreduce(DTYPES[d], n * p + 1, k));
        }
    }
}

TEST(test_segments) {
    coll_cases_run(2, segment_cases);
    if (!CHECK_SLOW) coll_cases_run(3, segment_cases); /* of more ranks: test_coll_pace.c */
}

static void million_cases(struct coll_rank *self) {
    static const int DTYPES[] = {HVD_INT8, HVD_FLOAT16, HVD_FLOAT32, HVD_INT64};
    for (int d = CHECK_SLOW; d < 4; d += 1 + 2 * CHECK_SLOW)
        check_rows(self, allreduce(DTYPES[d], 1000003, d));
}

TEST(test_million) {
    coll_cases_run(1, million_cases);
    coll_cases_run(CHECK_SLOW ? 2 : 5, million_cases);
}

/* From an input to an output on the window, often enough that slots are written in every way; the
 * largest changes the way in between. */
static void apart_case(struct coll_rank *self, size_t n) {
    struct coll_case c = allreduce(HVD_FLOAT32, n, 0);
    size_t bytes = n * sizeof(float), p = (size_t)self->ranks->size;
    unsigned char input[PERIOD * sizeof(float)], sum[PERIOD * sizeof(float)];
    struct slab in = slab_new(bytes, sizeof(float)), out = slab_new(bytes, sizeof(float));
    const struct comm *comm = rank_comm(self->ranks, self->rank);
    struct coll_tensor tensor = {
        .in = (const char *)in.data, .out = (char *)out.data, .bytes = bytes};
    struct coll_args args = {
        .kind = HVD_ALLREDUCE, .bytes = bytes, .tensors = &tensor, .ntensors = 1};
    fill_tile(&c, (int)p, self->rank, input);
    fill_tile(&c, (int)p, -1, sum);
    fill(in.data, bytes, input, sizeof input);
    memset(out.data, 0, bytes);
    args.scratch = &self->scratch;
    args.reduce = reduce_kernels(HVD_FLOAT32, HVD_SUM);
    args.prescale = 1;
    args.final = (struct reduce_final){1, 1};
    OK(coll_window_allreduce(comm, &args, ERR));
    CHECK(filled(out.data, bytes, sum, sizeof sum));
    CHECK(filled(in.data, bytes, input, sizeof input));
    slab_free(&in);
    slab_free(&out);
}

static void apart_cases(struct coll_rank *self) {
    static const size_t SIZES[] = {1000, 30000, 400000, 5000003};
    for (int i = 0; i < 4 - CHECK_SLOW; i++)
        for (int pass = 0; pass < 4; pass++) apart_case(self, SIZES[i]);
}

TEST(test_input_apart) {
    for (int p = 2; p <= 4; p++) {
        struct coll_run_shared shared = {.cases = apart_cases};
        ranks_run_on_window(p, coll_rank_main, &shared);
    }
}

/* ---- data whose sum depends on the order, or is no number ---- */

/* Any bits, also infinities and NaNs that differ. */
static void fill_bits(unsigned char *data, size_t bytes, int rank) {
    uint64_t random = (uint64_t)rank + 77;
    for (size_t i = 0; i < bytes; i++) data[i] = (unsigned char)(random_next(&random) >> 40);
    for (size_t i = 0; i + 8 <= bytes; i += 24) memset(data + i, 0xff, 7); /* a NaN of any width */
}

static void fill_reals(float *data, size_t n, int rank) {
    uint64_t random = (uint64_t)rank + 33;
    for (size_t i = 0; i < n; i++) data[i] = (float)random_unit(&random);
}

static void check_reals(const float *data, size_t n, int ranks) {
    double sum[PERIOD] = {0}, size[PERIOD] = {0};
    float own[PERIOD];
    for (int r = 0; r < ranks; r++) {
        fill_reals(own, n, r);
        for (size_t i = 0; i < n; i++) {
            sum[i] += (double)own[i];
            size[i] += fabs((double)own[i]);
        }
    }
    for (size_t i = 0; i < n; i++) CHECK_NEAR((double)data[i], sum[i], size[i] * ranks * 0x1p-24);
}

/* The same bits on all ranks, whatever the input; every row, then coll_run. */
static void unruly_case(struct coll_rank *self, int dtype, int op, size_t n, bool reals) {
    size_t rows, element = dtype_size(dtype), bytes = n * element;
    const struct coll_algorithm *table = coll_table(&rows);
    for (size_t i = 0; i <= rows + ANY_SIZES; i++) {
        struct coll_case c = allreduce(dtype, n, 0);
        c.how.op = op;
        c.row = i < rows ? &table[i] : i > rows ? &OF_ANY_SIZE[i - rows - 1] : NULL;
        struct slab slab = slab_new(bytes, element);
        if (reals)
            fill_reals((float *)(void *)slab.data, n, self->rank);
        else
            fill_bits(slab.data, bytes, self->rank);
        struct coll_args args = {.data = slab.data, .bytes = bytes};
        int code = case_run(self, &c, &args, ERR);
        if (code != HVD_UNSUPPORTED) {
            check_result(self, &c, same_on_all(self, slab.data, bytes), code, ERR);
            if (reals) check_reals((float *)(void *)slab.data, n, self->ranks->size);
        }
        slab_free(&slab);
    }
}

static void unruly_cases(struct coll_rank *self) {
    static const size_t SIZES[] = {1, 30, PERIOD};
    static const int OPS[] = {HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT};
    for (int s = 0; s < 3; s++) {
        for (int dtype = HVD_FLOAT16; dtype <= HVD_FLOAT64; dtype++)
            unruly_case(self, dtype, OPS[(s + dtype) % 4], SIZES[s], false);
        unruly_case(self, HVD_FLOAT32, HVD_SUM, SIZES[s], true);
    }
    unruly_case(self, HVD_FLOAT32, OPS[self->ranks->size % 4], 30000, false);
}

TEST(test_same_bits_on_all_ranks) {
    for (int p = 2; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, unruly_cases);
}

/* ---- bytes ---- */

struct host_bytes {
    int dtype;
    size_t bytes;
    struct stats stats[3]; /* [host] */
};

static void sum_and_count(struct ranks *ranks, int rank, void *shared) {
    struct host_bytes *count = shared;
    struct transport *t = rank_transport(ranks, rank);
    struct scratch scratch = {0}, outer = {0};
    struct coll_args args = {.kind = HVD_ALLREDUCE,
                             .data = calloc(count->bytes, 1),
                             .bytes = count->bytes,
                             .reduce = reduce_kernels((hvd_dtype)count->dtype, HVD_AVERAGE),
                             .prescale = 1,
                             .final = {1, ranks->size},
                             .scratch = &scratch,
                             .outer = &outer};
    t->stats = &count->stats[t->layout.host_of[rank]];
    OK(coll_run(&t->all, &args, ERR));
    scratch_free(&scratch);
    scratch_free(&outer);
    free(args.data);
}

/* 2(h-1)/h of the data, however the ranks are placed, and no more at 16 bits. */
TEST(test_a_host_sends_the_fewest_bytes) {
    enum { BYTES = 1200000 };
    static const int PLACED[][7] = {{4, 0, 0, 2, 2},
                                    {4, 0, 1, 0, 1},
                                    {6, 0, 1, 2, 0, 1, 2},
                                    {4, 0, 1, 1, 1},
                                    {5, 0, 0, 2, 3, 3}};
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT16};
    for (size_t i = 0; i < 2 * (sizeof PLACED / sizeof *PLACED); i++) {
        const int *placed = PLACED[i / 2];
        struct host_bytes count = {.dtype = DTYPES[i % 2], .bytes = BYTES};
        struct local_hub *hub = hub_on(placed[0], placed + 1, true);
        int hosts = local_hub_rank(hub, 0)->layout.hosts;
        ranks_run_hub(placed[0], hub, sum_and_count, &count);
        for (int h = 0; h < hosts; h++)
            CHECK_NEAR((double)count.stats[h].bytes_sent_mpi / BYTES, 2.0 * (hosts - 1) / hosts,
                       1e-3);
    }
}

TEST(test_on_hosts) {
    coll_cases_run_on_hosts(small_cases, PLACEMENTS);
    coll_cases_run_on_hosts(unruly_cases, PLACEMENTS);
    if (!CHECK_SLOW) coll_cases_run_on_hosts(scaled_cases, 2);
}
