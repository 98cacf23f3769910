/* The fast path in a window: for any mix of fast path, engine and errors, each use of a name gets
 * the data of that use. */
#include "handle_case.h"
#include "random.h"

#include <sys/mman.h>

enum { ROUNDS = CHECK_SLOW ? 300 : 600, CALLERS = 2, MOST = 8 << 10 };

struct caller {
    struct engine_rank *me;
    int number;
    /* by kind: number of rounds without negotiation; the last: of alltoalls with splits */
    atomic_int *fast;
    int64_t splits[MOST_RANKS];
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
    handle_renew(h, c->in, c->out);
    REQUIRE(engine_submit(c->me->engine, &h->tensor, ERR) == HVD_OK);
    if (r->waited) engine_drive(c->me->engine, is_done, h);
    bool fails = plan.wrong && c->me->ranks->size > 1;
    check_finished(h, PATIENCE, fails ? HVD_MISMATCH : HVD_OK);
    const char *way = engine_algorithm(c->me->engine);
    if (way && !strcmp(way, "fast path"))
        atomic_fetch_add(&c->fast[plan.splits ? HVD_JOIN : plan.kind], 1);
    if (!fails) check_results(c, &plan, round, h->tensor.out, (int)h->tensor.out_rows);
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

/* A rank that loses its core for long negotiates, so on a busy host few rounds are fast. Therefore
 * the callers run again until they have used the fast path often enough with each kind. */
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
    for (int p = 2; p <= 4; p++) run_callers(p, 0);
}

TEST(test_data_of_two_calls_with_one_name_never_mix_between_hosts) {
    for (int p = 2; p <= 7; p = more_ranks(p)) run_callers(p, 1);
}

/* One rank is later than the other. A second tensor with a name under way is refused, even while
 * the first tensor waits in a round. */
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

TEST(test_a_tensor_queues_behind_a_tensor_of_its_name_in_a_round) {
    for (int p = 2; p <= 3; p++) ranks_run_on_window(p, queued_main, NULL);
}

/* ---- a rank that is killed or stopped in a round ---- */

enum { PAGE = 4096, ONES = 2 * PAGE / sizeof(float) };

static _Alignas(PAGE) float ones[2][ONES], sums[2][ONES];
static atomic_bool frozen, thaws;

/* A signal handler that stops rank 1 while it adds its chunk. */
static void freeze(int number) {
    atomic_store(&frozen, true);
    while (!atomic_load(&thaws)) clock_nap(1e-3);
    mprotect(ones[1] + ONES / 2, PAGE, PROT_READ);
}

struct last_use {
    struct engine_rank *me;
    struct hvd_handle *h;
    int code;
};

static void *use_last(void *arg) {
    struct last_use *last = arg;
    hvd_error err = {0};
    handle_renew(last->h, ones[last->me->rank], sums[last->me->rank]);
    last->code = engine_submit(last->me->engine, &last->h->tensor, &err);
    if (last->code) handle_refuse(last->h, &err);
    return NULL;
}

/* Brings rank 1 to its chunk, where it stops, and rank 0 to its wait for that chunk. */
static void stand_still(struct engine_rank *me, struct last_use *last, pthread_t *thread) {
    struct hvd_handle *h = last->h;
    h->tensor.request = request_of("w", ONES);
    h->tensor.request.waited = true;
    for (int i = 0; i < 3 || (!all_went_fast(me) && i < TRIES); i++) {
        use_last(last);
        engine_drive(me->engine, is_done, h);
        check_finished(h, PATIENCE, HVD_OK);
    }
    CHECK_TEXT(engine_algorithm(me->engine), "fast path");
    if (me->rank) REQUIRE(!mprotect(ones[1] + ONES / 2, PAGE, PROT_NONE));
    threads_start(thread, 1, use_last, last, sizeof *last);
    while (!atomic_load(&frozen)) clock_nap(1e-3);
}

/* Callers wait for each other without a limit; otherwise the engine's thread would take over and
 * run into the fault. */
ENGINES_BY(killed_main, arg,
           rank_transport(ranks, rank)->patience.policy = (struct wait_policy){30e-6, PATIENCE,
                                                                               NULL}) {
    DROPPED struct hvd_handle *h = new_handle();
    struct last_use last = {me, h, HVD_OK};
    struct transport *t = rank_transport(me->ranks, me->rank);
    pthread_t thread;
    stand_still(me, &last, &thread);
    engine_leave(me->engine, "done");
    CHECK(engine_ended(me->engine, PATIENCE));
    if (!me->rank) transport_note_death(t, 1, FATE_DIED);
    if (!me->rank) threads_join(&thread, 1);
    ranks_meet(me->ranks);
    atomic_store(&thaws, true);
    if (me->rank) threads_join(&thread, 1);
    CHECK_INT(last.code, me->rank ? HVD_OK : HVD_NOT_INITIALIZED);
}

/* Rank 1's engine does not receive or answer, as after SIGSTOP. */
static int hear_nothing(struct transport *t, struct message *message, hvd_error *err) {
    return HVD_OK;
}
static int send_nothing(struct transport *t, int to, const void *data, size_t size,
                        hvd_error *err) {
    return HVD_OK;
}

ENGINES_BY(stopped_main, arg,
           rank_transport(ranks, rank)->patience.policy = (struct wait_policy){30e-6, PATIENCE,
                                                                               NULL};
           rank_transport(ranks, rank)->patience.timeout = 2) {
    DROPPED struct hvd_handle *h = new_handle();
    struct last_use last = {me, h, HVD_OK};
    struct transport *t = rank_transport(me->ranks, me->rank);
    const struct transport_ops *real = t->ops;
    struct transport_ops closed = *real;
    closed.receive = hear_nothing;
    closed.send = send_nothing;
    pthread_t thread;
    stand_still(me, &last, &thread);
    if (me->rank) t->ops = &closed;
    if (!me->rank) {
        threads_join(&thread, 1);
        CHECK(engine_ended(me->engine, PATIENCE));
        CHECK_HAS(h->error.text, "rank 1 (process");
        CHECK_HAS(h->error.text, "has not answered for");
    }
    ranks_meet(me->ranks);
    t->ops = real;
    atomic_store(&thaws, true);
    if (me->rank) threads_join(&thread, 1);
}

static void in_its_chunk(rank_main *run) {
    struct sigaction old, action = {.sa_handler = freeze};
    if (CHECK_SLOW) return; /* a sanitizer handles the signal itself */
    atomic_store(&frozen, false);
    atomic_store(&thaws, false);
    sigaction(SIGSEGV, &action, &old);
    ranks_run_on_window(2, run, NULL);
    sigaction(SIGSEGV, &old, NULL);
}

TEST(test_a_wait_in_a_round_ends_if_the_rank_is_killed_after_the_engine_ended) {
    in_its_chunk(killed_main);
}

/* Once no rank asked whether the stopped rank lives, because no tensor was in the engine: the other
 * ranks waited for ever, without an error. */
TEST(test_a_rank_stopped_in_a_round_is_named) { in_its_chunk(stopped_main); }
