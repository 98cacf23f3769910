/* Allreduce: sums whose bits depend on the order, separate inputs and outputs, bytes sent. */
#include "coll_case.h"
#include "collectives/hosts.h"

static struct coll_case sum_of(int dtype, int op, size_t n) {
    return (struct coll_case){.kind = HVD_ALLREDUCE, .dtype = dtype, .n = n, .how = {op, 1, 1}};
}

/* ---- data whose sum depends on the order or is NaN ---- */

/* Fills the data with random bits, including infinities and different NaNs. */
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

/* Checks that all ranks get the same bits for any input, from every row of the table and from
 * coll_run. */
static void unruly_case(struct coll_rank *self, int dtype, int op, size_t n, bool reals) {
    size_t rows, element = dtype_size(dtype), bytes = n * element;
    const struct coll_algorithm *table = coll_table(&rows);
    for (size_t i = 0; i <= rows + ANY_SIZES; i++) {
        struct coll_case c = sum_of(dtype, op, n);
        c.row = i < rows ? &table[i] : i > rows ? &OF_ANY_SIZE[i - rows - 1] : NULL;
        OWN(slab_free) struct slab slab = slab_new(bytes, element);
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

TEST(test_all_ranks_get_the_same_bits) {
    for (int p = 2; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, unruly_cases);
    coll_cases_run_on_hosts(unruly_cases, PLACEMENTS);
}

/* A window reducescatter adds in the order of ranks, so its sums have the same bits as those of a
 * window allreduce. */
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

TEST(test_a_window_reducescatter_gives_the_bits_of_a_window_allreduce) {
    for (int p = 2; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, same_bits);
}

/* The first host has 2048, the other hosts have 1. In float16, (2048 + 1) + 1 is 2048 if each sum
 * is rounded, and 2050 if only the last sum is rounded. */
static void sum_in_slices(struct coll_rank *self) {
    enum { N = 50000, TOP = 0x6800, ONE = 0x3c00, SUM = 0x6801 };
    const struct comm *comm = rank_comm(self->ranks, self->rank);
    int host = comm->layout->host_of[self->rank];
    static _Thread_local uint16_t data[N];
    for (int i = 0; i < N; i++) data[i] = comm->layout->host.rank ? 0 : host ? ONE : TOP;
    struct coll_case c = sum_of(HVD_FLOAT16, HVD_SUM, N);
    struct coll_args args = {.data = data, .bytes = sizeof data};
    CHECK(coll_hosts_in_slices(comm, reduce_kernels(HVD_FLOAT16, HVD_SUM), sizeof data / 4));
    OK(case_run(self, &c, &args, ERR));
    for (int i = 0; i < N; i++) CHECK_INT(data[i], SUM);
}

TEST(test_a_float16_sum_in_slices_is_rounded_once_between_hosts) {
    static const int PLACED[] = {0, 0, 2, 2, 4, 4};
    struct coll_run_shared shared = {.cases = sum_in_slices};
    struct local_hub *hub = hub_at(hub_on(6, PLACED, true), (struct pace){1024, 4}, BYTES_ALONE);
    ranks_run_hub(6, hub, coll_rank_main, &shared);
}

/* ---- bytes ---- */

struct host_bytes {
    int dtype;
    size_t bytes;
    struct stats stats[3]; /* by host */
};

static void sum_and_count(struct ranks *ranks, int rank, void *shared) {
    struct host_bytes *count = shared;
    struct transport *t = rank_transport(ranks, rank);
    OWN(scratch_free) struct scratch scratch = {0}, outer = {0};
    struct coll_args args = {.kind = HVD_ALLREDUCE,
                             .data = room(count->bytes),
                             .bytes = count->bytes,
                             .reduce = reduce_kernels((hvd_dtype)count->dtype, HVD_AVERAGE),
                             .prescale = 1,
                             .final = {1, ranks->size},
                             .scratch = &scratch,
                             .outer = &outer};
    t->stats = &count->stats[t->layout.host_of[rank]];
    OK(coll_run(&t->all, &args, ERR));
    free(args.data);
}

/* For any placement of ranks, a host sends 2(h-1)/h of the data; 16-bit data is sent as 16 bits. */
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
            CHECK_NEAR((double)count.stats[h].bytes_sent_network / BYTES, 2.0 * (hosts - 1) / hosts,
                       1e-3);
    }
}
