/* Every collective with every algorithm gives the serial result on every rank: 1 to 9 ranks, all
 * dtypes and ops, every root, uneven and empty parts; with messages, in a window, on several
 * hosts. */
#include "coll_case.h"

/* run_kind repeats its shapes of tensors with a period of 6, and these rows with a period that is 1
 * more than a multiple of 6, so every scaling runs with every shape. */
static const struct scaling SCALINGS[] = {
    OPS(UNSCALED){HVD_SUM, 0.5, 1}, {HVD_AVERAGE, 0.5, 4}, {HVD_MAX, 2, -0.5}, {HVD_MIN, 2, -0.5},
    {HVD_PRODUCT, 2, 0.25},         {HVD_SUM, 2, 0.25},    {HVD_AVERAGE, 1, 2}};
enum { NSCALINGS = sizeof SCALINGS / sizeof *SCALINGS, CYCLE = (NSCALINGS + 4) / 6 * 6 + 1 };

static bool reduces(hvd_kind kind) { return kind == HVD_ALLREDUCE || kind == HVD_REDUCESCATTER; }
static bool has_units(hvd_kind kind) { return kind == HVD_ALLGATHER || kind == HVD_ALLTOALL; }

/* Returns how many units rank `from` sends to rank `to`: the same number to each rank, none, some
 * to itself, some to one rank, some from one rank, uneven numbers, one long part. In an allgather a
 * rank contributes as many units as it would send to the last rank. */
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

static void run_shapes(struct coll_rank *self, struct coll_case c) {
    int ranks = self->ranks->size, each = c.kind == HVD_ALLTOALL ? ranks : 1;
    size_t parts[MOST_RANKS * MOST_RANKS];
    c.parts = parts;
    for (int shape = 0; shape < SHAPES; shape++) {
        for (int i = 0; i < ranks * each; i++)
            parts[i] = units(shape, ranks, i / each, each > 1 ? i % each : ranks - 1);
        check_rows(self, c);
    }
}

/* Runs a kind with n elements. A reducescatter has n rows instead, with one, several or no
 * elements, depending on `turn`. */
static void run_kind(struct coll_rank *self, hvd_kind kind, int dtype, size_t n, int turn) {
    struct coll_case c = {.kind = kind, .dtype = dtype, .n = n, .how = {HVD_SUM, 1, 1}};
    if (has_units(kind)) return run_shapes(self, c);
    if (reduces(kind)) c.how = SCALINGS[turn % CYCLE % NSCALINGS];
    /* test_coll_adasum.c has Adasum */
    if (c.how.op == HVD_ADASUM || !op_takes(c.how.op, dtype)) c.how.op = HVD_SUM;
    if (dtype == HVD_BOOL) c.how.prescale = c.how.postscale = 1;
    if (dtype == HVD_BOOL && c.how.op == HVD_AVERAGE) c.how.op = HVD_SUM;
    if (kind == HVD_REDUCESCATTER) c.rows = n, c.n = turn % 3 ? 1 : (size_t)turn % 2 * 5;
    for (; c.root < (kind == HVD_BROADCAST ? self->ranks->size : 1); c.root++) check_rows(self, c);
}

/* A dtype gets every second size, and the next dtype the other sizes. Kinds that compute nothing
 * get fewer dtypes, because only the size of an element matters. */
static void small_cases(struct coll_rank *self) {
    static const int MOVED[] = {HVD_FLOAT64, HVD_FLOAT32, HVD_BFLOAT16, HVD_UINT8};
    size_t p = (size_t)self->ranks->size;
    const size_t sizes[] = {0, 1, p - 1, p, p + 1, 2 * p + 1, 61, 1009, 5003};
    static const size_t of_parts[] = {1, 61, 1009};
    const int n = sizeof sizes / sizeof *sizes;
    for (int kind = 0, turn = 0; kind < HVD_JOIN; kind++) {
        bool sums = reduces((hvd_kind)kind);
        for (int dtype = 0; dtype < HVD_DTYPES && sums; dtype++)
            for (int s = dtype % 2; s < n - (kind == HVD_REDUCESCATTER); s += 2)
                run_kind(self, (hvd_kind)kind, dtype, sizes[s], turn++);
        for (int s = 0; s < 3 && has_units((hvd_kind)kind); s++)
            run_kind(self, (hvd_kind)kind, MOVED[s], of_parts[s], 0);
        for (int s = 0; s < n && kind == HVD_BROADCAST; s++)
            run_kind(self, HVD_BROADCAST, MOVED[s % 4], sizes[s], 0);
    }
}

TEST(test_every_kind_dtype_and_operation_is_right_on_few_elements) {
    static const int RANKS[] = {2, 3, 5, 1, 4, 6, 9}; /* coll_cases_run_on_hosts has 7 and 8 */
    for (int i = 0; i < (CHECK_SLOW ? 3 : 7); i++) coll_cases_run(RANKS[i], small_cases);
    coll_cases_run_on_hosts(small_cases, PLACEMENTS);
}

/* Runs sizes at which a rank's part of the data is exactly one segment, or the data fill the shared
 * memory, and sizes with one element less or more. */
static void segment_cases(struct coll_rank *self) {
    static const int DTYPES[] = {HVD_FLOAT32, HVD_INT8, HVD_BFLOAT16};
    static const size_t SEGMENTS[] = {1, 5, 4};
    for (int kind = 0; kind < HVD_JOIN; kind++) {
        for (int k = 0; k < (CHECK_SLOW || has_units((hvd_kind)kind) ? 1 : 3); k++) {
            size_t n = SEGMENTS[k] * PACE_DEFAULT.segment / dtype_size(DTYPES[k]);
            size_t whole = n * (size_t)self->ranks->size;
            for (size_t more = CHECK_SLOW; more < 3; more++) {
                run_kind(self, (hvd_kind)kind, DTYPES[k], n + more - 1, k);
                if (reduces((hvd_kind)kind))
                    run_kind(self, (hvd_kind)kind, DTYPES[k], whole + more - 1, k + 1);
            }
        }
    }
}

TEST(test_data_longer_than_a_segment_is_sent_whole) {
    coll_cases_run(2, segment_cases);
    if (!CHECK_SLOW) coll_cases_run(3, segment_cases);
}

/* ---- segments of several lengths; few and many in flight ---- */

static const struct pace PACES[] = {{64, 1}, {64, 2}, {128, 3}, {1024, 5}, {192, PACE_MOST_DEPTH}};
enum { NPACES = sizeof PACES / sizeof *PACES };

static void pace_cases(struct coll_rank *self) {
    static const size_t SIZES[] = {1, 61, 1009};
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT16, HVD_INT8, HVD_FLOAT64};
    size_t parts[MOST_RANKS * MOST_RANKS];
    for (int i = 0; i < MOST_RANKS * MOST_RANKS; i++) parts[i] = (size_t)i % 4;
    for (int i = 0; i < 12 * HVD_JOIN; i++) {
        struct coll_case c = {.kind = (hvd_kind)(i % HVD_JOIN), .dtype = DTYPES[i / HVD_JOIN % 4]};
        c.how = (struct scaling){HVD_SUM, 1, 1};
        c.parts = parts;
        c.rows = SIZES[i / HVD_JOIN / 4];
        c.n = c.kind == HVD_REDUCESCATTER ? 1 : c.rows;
        check_rows(self, c);
    }
}

TEST(test_every_segment_length_and_depth_gives_the_serial_result) {
    for (int p = 2; p <= 5; p = more_ranks(p))
        for (int i = p % 2; i < NPACES; i += 2) coll_cases_run_at(p, PACES[i], pace_cases);
}

TEST(test_large_data_goes_between_hosts_in_slices) {
    for (int i = 0; i < NPACES; i += 2 + 2 * CHECK_SLOW)
        coll_cases_run_on_hosts_at(PACES[i], BYTES_ALONE, pace_cases, i ? 2 : PLACEMENTS);
}
