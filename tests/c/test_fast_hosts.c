/* The fast path between hosts with one rank each: bits of sums; ranks that are late, leave or
 * join. */
#include "handle_case.h"
#include "random.h"

enum { N = 700, OTHERS = 8 };

static struct local_hub *hosts(int p) { return hub_of(p, 1, false); }

static struct hvd_handle *named(const char *name) {
    struct hvd_handle *h = new_handle();
    h->tensor.request = request_of(name, N);
    h->tensor.request.waited = true;
    return h;
}

static void begin(struct engine_rank *me, struct hvd_handle *h, void *in, void *out) {
    handle_renew(h, in, out);
    REQUIRE(engine_submit(me->engine, &h->tensor, ERR) == HVD_OK);
}

static void end(struct engine_rank *me, struct hvd_handle *h, int code) {
    engine_drive(me->engine, is_done, h);
    check_finished(h, PATIENCE, code);
}

/* Runs an allreduce in which `of` ranks contribute 1. */
static void use(struct engine_rank *me, struct hvd_handle *h, int of) {
    float in[N], out[N];
    for (int i = 0; i < N; i++) in[i] = 1;
    begin(me, h, in, out);
    end(me, h, HVD_OK);
    CHECK_CASE(out[0] == (float)of && out[N - 1] == (float)of, "rank %d: %g", me->rank,
               (double)out[0]);
}

/* Negotiates the tensor twice, with the whole request and with the cache id; later uses need no
 * coordinator. */
static void open_rounds(struct engine_rank *me, struct hvd_handle *h) {
    int tries = 0;
    for (int i = 0; i < 2; i++) use(me, h, me->ranks->size);
    do use(me, h, me->ranks->size);
    while (!all_went_fast(me) && ++tries < TRIES);
    CHECK(tries < TRIES);
}

/* ---- bits ---- */

ENGINES_BY(bits_main, arg, spin(ranks, rank)) {
    static const struct {
        hvd_dtype dtype;
        hvd_op op;
    } CASES[] = {{HVD_FLOAT32, HVD_SUM},  {HVD_FLOAT16, HVD_AVERAGE}, {HVD_BFLOAT16, HVD_SUM},
                 {HVD_INT8, HVD_AVERAGE}, {HVD_FLOAT64, HVD_MAX},     {HVD_FLOAT32, HVD_AVERAGE}};
    for (int c = 0; c < 6; c++) {
        DROPPED struct hvd_handle *h = named(numbered("bits", c));
        _Alignas(8) unsigned char in[N * 8], out[2][N * 8];
        uint64_t seed = (uint64_t)(me->rank * 10 + c + 1);
        h->tensor.request.dtype = CASES[c].dtype;
        h->tensor.request.op = CASES[c].op;
        h->tensor.request.prescale = c % 2 ? 1 : 0.3;
        h->tensor.request.dims[0] = N / 2;
        for (size_t i = 0; i < sizeof in; i++) in[i] = (unsigned char)random_next(&seed);
        for (int use = 0; use < 3 || (!all_went_fast(me) && use < TRIES); use++) {
            begin(me, h, in, out[use > 0]);
            end(me, h, HVD_OK);
            if (use < 2) CHECK_TEXT(engine_algorithm(me->engine), "recursive doubling");
            if (use) CHECK(!memcmp(out[0], out[1], request_bytes(&h->tensor.request)));
        }
        CHECK_TEXT(engine_algorithm(me->engine), "fast path");
    }
}

TEST(test_the_fast_path_gives_the_bits_of_the_engine) {
    for (int p = 2; p <= MOST_RANKS; p = more_ranks(p)) ranks_run_hub(p, hosts(p), bits_main, NULL);
}

/* ---- one rank does something different ---- */

ENGINES_BY(late_main, arg, spin(ranks, rank)) {
    /* at the second delay the other ranks give up waiting */
    static const double LATE[] = {0.05, 0.6, 0};
    DROPPED struct hvd_handle *h = named("late");
    open_rounds(me, h);
    for (int i = 0; i < 3; i++) {
        int tries = 0;
        do {
            if (me->rank == *(int *)arg) clock_nap(LATE[i]);
            use(me, h, me->ranks->size);
        } while (all_went_fast(me) != (i != 1) && ++tries < TRIES);
        CHECK_CASE(tries < TRIES, "a rank that is %g s late", LATE[i]);
    }
}

TEST(test_ranks_negotiate_only_if_a_rank_is_late_for_long) {
    for (int p = 2; p <= 5; p = more_ranks(p)) ranks_run_hub(p, hosts(p), late_main, &(int){p / 2});
}

ENGINES_BY(leaving_main, arg, spin(ranks, rank)) {
    float in[N] = {0}, out[N];
    bool leaves = me->rank == *(int *)arg;
    DROPPED struct hvd_handle *h = named("left");
    open_rounds(me, h);
    if (!leaves) begin(me, h, in, out);
    ranks_meet(me->ranks);
    if (leaves) engine_leave(me->engine, "out of data");
    if (!leaves) end(me, h, HVD_RANK_LEFT);
    if (!leaves) begin(me, h, in, out);
    if (!leaves) end(me, h, HVD_RANK_LEFT);
}

TEST(test_a_rank_that_leaves_ends_waits_on_the_fast_path) {
    for (int p = 2; p <= 5; p = more_ranks(p))
        for (int rank = 0; rank < p; rank += p - 1)
            ranks_run_hub(p, hosts(p), leaving_main, &(int){rank});
}

/* Reduces tensors that one rank does not submit; returns the seconds of the fastest call. A rank
 * that waits on the fast path asks the missing rank after 0.25 s. */
static double use_without_one(struct engine_rank *me, struct hvd_handle *const *tensors, int n) {
    double least = PATIENCE;
    for (int i = 0; i < n; i++) {
        double begin = clock_now();
        use(me, tensors[i], me->ranks->size - 1);
        least = fmin(least, clock_now() - begin);
    }
    return least;
}

/* Rank 1 submits a tensor on the fast path, then joins or leaves. Other ranks may already have rank
 * 1's data, so rank 1 joins or leaves only when this tensor has ended. */
ENGINES_BY(coming_main, arg, spin(ranks, rank)) {
    float in[N] = {1}, out[N];
    int64_t last = -1;
    bool first = me->rank == 1, joins = *(bool *)arg;
    DROPPED struct hvd_handle *h = named("coming"), *join = named("join");
    struct hvd_handle *others[OTHERS];
    join->tensor.request.kind = HVD_JOIN;
    join->tensor.request.dtype = HVD_INT64;
    join->tensor.request.ndim = 0;
    for (int i = 0; i < OTHERS; i++) open_rounds(me, others[i] = named(numbered("other", i)));
    open_rounds(me, h);
    if (first) begin(me, h, in, out);
    if (first && joins) begin(me, join, NULL, &last);
    if (first && !joins) engine_leave(me->engine, "out of data");
    if (first) clock_nap(10e-3);
    ranks_meet(me->ranks);
    if (!first) begin(me, h, in, out);
    end(me, h, HVD_OK);
    CHECK(out[0] == (float)me->ranks->size);
    if (joins && !first) CHECK(use_without_one(me, others, OTHERS) < 0.2);
    if (joins && !first) begin(me, join, NULL, &last);
    if (joins) end(me, join, HVD_OK);
    if (joins) use(me, h, me->ranks->size);
    for (int i = 0; i < OTHERS; i++) hvd_drop(others[i]);
}

TEST(test_a_rank_joins_or_leaves_only_after_its_tensor_on_the_fast_path) {
    for (int p = 2; p <= 5; p = more_ranks(p)) {
        ranks_run_hub(p, hosts(p), coming_main, &(bool){true});
        ranks_run_hub(p, hosts(p), coming_main, &(bool){false});
    }
}
