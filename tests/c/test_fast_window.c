/* The fast path in a window: for any mix of fast path, engine and errors, each use of a name gets
 * the data of that use. */
#include "handle_case.h"
#include "random.h"

enum { ROUNDS = CHECK_SLOW ? 300 : 600, CALLERS = 2, MOST = 8 << 10 };

struct caller {
    struct engine_rank *me;
    int number;
    /* by kind: how many collectives used the fast path; the last entry: alltoalls with splits */
    atomic_int *fast;
    int64_t splits[MOST_RANKS];
    float *lists[2][MOST_RANKS];
    float in[MOST], out[MOST_RANKS * MOST];
};

/* What the ranks do in a round. `odd`: the rank that does something different. */
struct plan {
    hvd_kind kind;
    int odd, n, root;
    int skew; /* alltoall: how many rows more than the average a rank sends to the next rank */
    bool unwaited, late, wrong, more, splits;
};

/* Returns the plan of a round, equal on all ranks. */
static struct plan plan_of(const struct caller *c, int round) {
    /* the smallest size is added in one step, the others in chunks */
    static const int SIZES[] = {1, 1000, 5001};
    const int size = c->me->ranks->size, part = round / (ROUNDS / 15);
    uint64_t random = (uint64_t)(round * CALLERS + c->number) + 1;
    uint64_t what = random_next(&random) % 40;
    int n = SIZES[part % 3];
    hvd_kind kind = (hvd_kind)(part % HVD_JOIN);
    bool splits = kind == HVD_ALLTOALL && part / HVD_JOIN != 1;
    return (struct plan){.kind = kind,
                         .odd = (int)(random_next(&random) % (uint64_t)size),
                         .n = kind == HVD_ALLTOALL ? (n / size + 1) * size : n,
                         .root = part % size,
                         .splits = splits,
                         .skew = splits * (what == 4 ? 1 : n / size + 1),
                         .unwaited = what == 0,
                         .late = what == 1,
                         .wrong = what == 2,
                         .more = what == 3 && kind == HVD_ALLGATHER};
}

static float value(int rank, int round, int i) {
    return (float)((rank + 1) * (round % 97 + i % 5));
}

/* Returns a rank's number of rows; a row has one element. */
static int rows_of(const struct plan *plan, int rank) {
    return plan->n + (plan->more && rank == plan->odd);
}

/* Returns how many rows rank `from` sends to rank `to` in an alltoall. */
static int split_of(const struct plan *plan, int size, int from, int to) {
    int next = (from + 1) % size;
    return plan->n / size + plan->skew * ((to == next) - (to == from));
}

static int64_t out_rows_of(const struct caller *c, const struct plan *plan,
                           const struct request *r) {
    int size = c->me->ranks->size;
    switch (plan->kind) {
    case HVD_ALLGATHER:
        return (int64_t)plan->n * size; /* a wrong guess if ranks have different numbers of rows */
    case HVD_REDUCESCATTER: return request_part_rows(r, c->me->rank, size);
    default: return plan->n;
    }
}

static float sum_of(int size, int round, int i) {
    float sum = 0;
    for (int r = 0; r < size; r++) sum += value(r, round, i);
    return sum;
}

/* Returns the expected element i of this rank's result. */
static float expected(const struct caller *c, const struct plan *plan, int round, int i) {
    int size = c->me->ranks->size, self = c->me->rank, each = plan->n / size, from = 0, rows;
    switch (plan->kind) {
    case HVD_BROADCAST: return value(plan->root, round, i);
    case HVD_ALLGATHER:
        while (i >= rows_of(plan, from)) i -= rows_of(plan, from++);
        return value(from, round, i);
    case HVD_REDUCESCATTER:
        return sum_of(size, round,
                      i + self * each + (self < plan->n % size ? self : plan->n % size));
    case HVD_ALLTOALL:
        while (i >= (rows = split_of(plan, size, from, self))) i -= rows, from++;
        for (int to = 0; to < self; to++) i += split_of(plan, size, from, to);
        return value(from, round, i);
    default: return sum_of(size, round, i);
    }
}

static void check_results(const struct caller *c, const struct plan *plan, int round,
                          const float *out, int n) {
    int wrong = 0;
    for (int i = 0; i < n; i++) wrong += out[i] != expected(c, plan, round, i);
    CHECK_CASE(!wrong, "kind %d, round %d of caller %d on rank %d: %d of %d", plan->kind, round,
               c->number, c->me->rank, wrong, n);
}

/* Lists the parts of an alltoall. A listed alltoall does not copy this rank's own part, so it is
 * copied here. */
static void list_parts(struct caller *c, int each) {
    for (int r = 0; r < c->me->ranks->size; r++) {
        bool own = r == c->me->rank;
        c->lists[0][r] = own ? NULL : c->in + r * each;
        c->lists[1][r] = own ? NULL : c->out + r * each;
        if (own) memcpy(c->out + r * each, c->in + r * each, (size_t)each * sizeof(float));
    }
}

static void use_once(struct caller *c, struct hvd_handle *h, int round) {
    struct plan plan = plan_of(c, round);
    bool odd = plan.odd == c->me->rank;
    struct request *r = &h->tensor.request;
    r->kind = plan.kind;
    r->waited = !(odd && plan.unwaited);
    r->op = odd && plan.wrong ? HVD_MAX : HVD_SUM;
    r->dtype = odd && plan.wrong ? HVD_INT32 : HVD_FLOAT32;
    r->root = plan.root;
    r->dims[0] = rows_of(&plan, c->me->rank);
    h->tensor.out_rows = out_rows_of(c, &plan, r);
    h->tensor.open = plan.kind == HVD_ALLGATHER;
    r->uneven = plan.splits;
    h->tensor.splits = plan.splits ? c->splits : NULL;
    h->tensor.nsplits = plan.splits ? (size_t)c->me->ranks->size : 0;
    for (int to = 0; to < c->me->ranks->size; to++)
        c->splits[to] = split_of(&plan, c->me->ranks->size, c->me->rank, to);
    for (int i = 0; i < r->dims[0]; i++) c->in[i] = value(c->me->rank, round, i);
    if (odd && plan.late) clock_nap(10e-3);
    h->tensor.listed = plan.kind == HVD_ALLTOALL && !plan.splits && round % 3;
    if (h->tensor.listed) list_parts(c, plan.n / c->me->ranks->size);
    handle_renew(h, h->tensor.listed ? (void *)c->lists[0] : c->in,
                 h->tensor.listed ? (void *)c->lists[1] : c->out);
    REQUIRE(engine_submit(c->me->engine, &h->tensor, ERR) == HVD_OK);
    if (r->waited) engine_drive(c->me->engine, is_done, h);
    bool fails = plan.wrong && c->me->ranks->size > 1;
    check_finished(h, PATIENCE, fails ? HVD_MISMATCH : HVD_OK);
    const char *way = engine_algorithm(c->me->engine);
    if (way && !strcmp(way, "fast path"))
        atomic_fetch_add(&c->fast[plan.splits ? HVD_JOIN : plan.kind], 1);
    if (!fails)
        check_results(c, &plan, round, h->tensor.listed ? c->out : h->tensor.out,
                      (int)h->tensor.out_rows);
}

static void *call(void *arg) {
    struct caller *c = arg;
    DROPPED struct hvd_handle *h = new_handle();
    char name[] = {(char)('a' + c->number), 0};
    h->tensor.request = request_of(name, MOST);
    for (int round = 0; round < ROUNDS; round++) use_once(c, h, round);
    h->tensor.splits = NULL;
    return NULL;
}

/* A caller waits for a rank that has lost its core, but not for a rank that sleeps. */
ENGINES_BY(callers_main, arg,
           rank_transport(ranks, rank)->patience.policy = (struct wait_policy){30e-6, 5e-3, NULL}) {
    static struct caller all[MOST_RANKS][CALLERS];
    struct caller *own = all[me->rank];
    for (int i = 0; i < CALLERS; i++) own[i] = (struct caller){.me = me, .number = i, .fast = arg};
    threads_run(CALLERS, call, own, sizeof *own);
}

/* If a rank loses its core for long, the ranks do not use the fast path but negotiate. Therefore,
 * on a busy host, the callers run again until each kind has used the fast path often enough. */
static void run_callers(int p, int per_host) {
    enum { ENOUGH = ROUNDS / 20, RUNS = 20 };
    int kind = 0, kinds = per_host ? 1 : HVD_JOIN + 1;
    atomic_int fast[HVD_JOIN + 1] = {0};
    for (int run = 0; kind < kinds && run < RUNS; run++) {
        ranks_run_hub(p, hub_of(p, per_host, !per_host), callers_main, fast);
        while (kind < kinds && atomic_load(&fast[kind]) > ENOUGH) kind++;
    }
    CHECK_CASE(kind == kinds, "%d ranks: few fast rounds of kind %d", p, kind);
}

TEST(test_data_of_two_calls_with_one_name_never_mix) {
    for (int p = 2; p <= 4; p = more_ranks(p)) run_callers(p, 0);
}

TEST(test_data_of_two_calls_with_one_name_never_mix_between_hosts) {
    for (int p = 2; p <= 7; p = more_ranks(p)) run_callers(p, 1);
}

/* One rank is later than the other. A second tensor with the name of the first is refused, even
 * while the first tensor waits on the fast path. */
ENGINES_BY(twice_main, arg,
           rank_transport(ranks, rank)->patience.policy = (struct wait_policy){1e-3, PATIENCE,
                                                                               NULL}) {
    float data[3] = {0};
    DROPPED struct hvd_handle *first = new_handle(), *second = new_handle();
    first->tensor.request = second->tensor.request = request_of("twice", 3);
    second->tensor.request.waited = true;
    for (int round = 0; round < 60; round++) {
        bool twice = !me->rank && round == 50;
        first->tensor.request.waited = !twice && (me->rank || round > 5);
        engine_cork(me->engine, twice);
        handle_renew(first, data, data);
        REQUIRE(engine_submit(me->engine, &first->tensor, ERR) == HVD_OK);
        if (twice) {
            handle_renew(second, data, data);
            CHECK(!strcmp(engine_algorithm(me->engine), "fast path"));
            FAILS(engine_submit(me->engine, &second->tensor, ERR), HVD_DUPLICATE);
            handle_refuse(second, ERR);
            engine_cork(me->engine, false);
        }
        engine_drive(me->engine, is_done, first);
        check_finished(first, PATIENCE, HVD_OK);
    }
}

TEST(test_a_name_that_is_in_progress_is_refused) { ranks_run_on_window(2, twice_main, NULL); }

/* A thread that submits a tensor with the same name as other threads; the tensor may queue. */
static void *queue_behind(void *arg) {
    struct engine_rank *me = *(struct engine_rank **)arg;
    DROPPED struct hvd_handle *h = new_handle();
    h->tensor.request = request_of("queued", 3);
    h->tensor.request.waited = h->tensor.queued = true;
    for (int round = 0; round < ROUNDS / 2; round++) {
        float data[3] = {1, 1, 1};
        handle_renew(h, data, data);
        if (!OK(engine_submit(me->engine, &h->tensor, ERR))) return handle_refuse(h, ERR), NULL;
        engine_drive(me->engine, is_done, h);
        check_finished(h, PATIENCE, HVD_OK);
        CHECK_NEAR(data[2], me->ranks->size, 0);
    }
    return NULL;
}

ENGINES_BY(queued_main, arg, spin(ranks, rank)) {
    struct engine_rank *all[CALLERS] = {me, me};
    threads_run(CALLERS, queue_behind, all, sizeof *all);
}

TEST(test_a_tensor_queues_behind_a_tensor_of_its_name_on_the_fast_path) {
    for (int p = 2; p <= 3; p = more_ranks(p)) ranks_run_on_window(p, queued_main, NULL);
}
