/* Several threads share a handle: each gets the tensor's result, and nothing is freed too early. */
#include "handle_case.h"

#include "base/floats.h"

#include <sys/wait.h>

enum { HANDLES = 60, ASKERS = 4, WRONG = 7 };

struct started {
    struct work work;
    struct hvd_handle *handle;
};

/* Every WRONG-th tensor is larger on rank 0; this is an error on all ranks. */
static void start(struct started *s, struct engine_rank *me, int number) {
    work_init(&s->work, me, plain_sum(number % WRONG || me->rank ? 1000 : 1001),
              numbered("shared", number), true);
    s->handle = new_handle();
    s->handle->tensor = s->work.tensor;
    submit(me, s->handle);
}

static void end(struct started *s) {
    hvd_drop(s->handle);
    work_free(&s->work);
}

static void check_ended(struct started *s, int number, int code, const hvd_error *err) {
    bool wrong = number % WRONG == 0 && s->work.owner->ranks->size > 1;
    CHECK_CASE(code == 1, "tensor %d", number);
    CHECK_CODE(err->code, wrong ? HVD_MISMATCH : HVD_OK, *err);
    if (!wrong) CHECK_CASE(work_right(&s->work), "tensor %d", number);
}

/* Some threads poll, some wait; all ask again when the tensor is done. */
struct asker {
    struct started *all;
    bool polls;
};

static void *ask(void *arg) {
    struct asker *a = arg;
    for (int i = 0; i < HANDLES; i++) {
        while (!handle_finish(a->all[i].handle, a->polls ? 0 : PATIENCE, a->polls ? NULL : ERR));
        check_ended(&a->all[i], i, handle_finish(a->all[i].handle, PATIENCE, ERR), ERR);
    }
    return NULL;
}

ENGINES_TEST(test_all_threads_that_finish_one_handle_see_its_result, ranks_run, 1, 3) {
    struct started all[HANDLES];
    struct asker askers[ASKERS];
    for (int i = 0; i < HANDLES; i++) start(&all[i], me, i);
    for (int i = 0; i < ASKERS; i++) askers[i] = (struct asker){.all = all, .polls = i % 2};
    threads_run(ASKERS, ask, askers, sizeof *askers);
    engine_rank_end(me);
    for (int i = 0; i < HANDLES; i++) {
        check_ended(&all[i], i, handle_finish(all[i].handle, 0, ERR), ERR); /* without an engine */
        end(&all[i]);
    }
}

/* A watcher is called once, whether or not the tensor is done already. */
static void count(void *arg) { atomic_fetch_add((atomic_int *)arg, 1); }

ENGINES_TEST(test_a_watcher_is_called_once, ranks_run, 2, 2) {
    struct started all[HANDLES];
    atomic_int calls[HANDLES] = {0};
    for (int i = 0; i < HANDLES; i++) {
        start(&all[i], me, i);
        if (i % 3 == 0) handle_finish(all[i].handle, PATIENCE, ERR);
        hvd_watch(all[i].handle, count, &calls[i]);
    }
    for (int i = 0; i < HANDLES; i++) handle_finish(all[i].handle, PATIENCE, ERR);
    check_in_order(me, "after"); /* the last watcher has been called by now */
    for (int i = 0; i < HANDLES; i++) {
        CHECK_CASE(calls[i] == 1, "tensor %d", i);
        end(&all[i]);
    }
}

/* In an allgather rank r contributes r + 1 rows of 3; in an alltoall it sends one row to each
 * rank. */
static struct hvd_handle *start_open(struct engine_rank *me, int kind, float *in, float *out,
                                     int64_t out_rows, const char *name) {
    struct hvd_handle *h = new_handle();
    int rows = kind == HVD_ALLGATHER ? me->rank + 1 : me->ranks->size;
    h->tensor = (struct tensor){.in = in, .out = out, .out_rows = out_rows, .open = true};
    h->tensor.request = gather_of(name, rows, 3);
    h->tensor.request.kind = kind;
    for (int i = 0; i < 3 * rows; i++) in[i] = (float)me->rank;
    submit(me, h);
    return h;
}

static void check_open(struct hvd_handle *h, int ranks, bool gathers, const float *expected) {
    const int64_t *rows;
    int64_t at = 0;
    check_finished(h, PATIENCE, HVD_OK);
    const float *out = hvd_result(h, &rows);
    REQUIRE(out && rows);
    if (expected) CHECK(out == expected);
    for (int r = 0; r < ranks; r++) {
        CHECK_INT(rows[r], gathers ? r + 1 : 1);
        for (int64_t end = at + 3 * rows[r]; at < end; at++) CHECK_INT(out[at], r);
    }
}

ENGINES_TEST(test_the_engine_allocates_the_output_of_an_open_tensor, ranks_run, 1, 3) {
    float in[5][3 * MOST_RANKS], room[3 * MOST_RANKS * MOST_RANKS];
    int n = me->ranks->size, all = n * (n + 1) / 2;
    DROPPED struct hvd_handle *kept = start_open(me, HVD_ALLGATHER, in[0], NULL, 0, "none"),
                              *fits = start_open(me, HVD_ALLGATHER, in[1], room, all, "fits"),
                              *wrong =
                                  start_open(me, HVD_ALLGATHER, in[2], in[4], 1 + all, "wrong"),
                              *dealt = start_open(me, HVD_ALLTOALL, in[3], NULL, 0, "dealt");
    check_open(kept, n, true, NULL);
    check_open(fits, n, true, room);
    check_open(wrong, n, true, NULL);
    check_open(dealt, n, false, NULL);
    hvd_drop(start_open(me, HVD_ALLGATHER, in[4], NULL, 0, "dropped under way"));
    engine_rank_end(me);
    check_open(kept, n, true, NULL); /* without an engine */
}

/* Ranks submit tensors that another library moves (delegated tensors) in different orders. Each
 * tensor has the same turn (position in the library's order) on all ranks, and its memory is not
 * touched. An allgather reports all rows. A batch's tensors have consecutive turns. */
ENGINES_TEST(test_tensors_moved_by_another_library_have_one_order_on_all_ranks, ranks_run, 1, 3) {
    enum { N = 12 };
    struct hvd_handle *all[N];
    int64_t turns[2 * N], of_all[MOST_RANKS * 2 * N], last_of[N + 1] = {0};
    for (int k = 0; k < N; k++) {
        int i = (k * 5 + me->rank * 7) % N;
        struct hvd_handle *h = all[i] = new_handle();
        h->tensor.request = i % 3 ? request_of(numbered("moved", i), 1 << 20)
                                  : gather_of(numbered("moved", i), me->rank + 1, 1 << 20);
        h->tensor.open = i % 3 == 0;
        h->tensor.request.delegated = true;
        submit(me, h);
    }
    for (int i = 0; i < N; i++) {
        const int64_t *rows;
        check_finished(all[i], PATIENCE, HVD_OK);
        CHECK(hvd_result(all[i], &rows) == NULL);
        for (int r = 0; i % 3 == 0 && r < me->ranks->size; r++) CHECK_INT(rows[r], r + 1);
        turns[i] = (int64_t)hvd_turn(all[i]);
        turns[N + i] = (int64_t)hvd_last_turn(all[i]);
        CHECK(turns[i] > 0 && turns[i] <= turns[N + i] && turns[N + i] <= N);
        CHECK(i % 3 || turns[i] == turns[N + i]); /* an allgather is a batch of its own */
        last_of[turns[i]] = turns[N + i];
        hvd_drop(all[i]);
    }
    for (int turn = 1; turn < N; turn++)
        CHECK(last_of[turn] == turn || last_of[turn] == last_of[turn + 1]);
    struct hvd_handle *h = new_handle();
    h->tensor = (struct tensor){.in = turns, .out = of_all, .out_rows = me->ranks->size};
    h->tensor.request = gather_of("turns", 1, 2 * N);
    h->tensor.request.dtype = HVD_INT64;
    submit(me, h);
    check_finished(h, PATIENCE, HVD_OK);
    hvd_drop(h);
    for (int r = 0; r < me->ranks->size; r++)
        CHECK(!memcmp(of_all + r * 2 * N, turns, sizeof turns));
    for (int i = 0; i < N; i++)
        for (int k = 0; k < i; k++) CHECK(turns[i] != turns[k]);
}

/* Some callers step the engine; one caller leaves the steps to the engine's thread. */
enum { CALLERS = 3, ROUNDS = 40 };

struct caller {
    struct engine_rank *me;
    int number;
    atomic_int *driven; /* number of tensors that were done without a sleep */
};

/* Repeats the run until a waiting caller has run the engine. On a busy machine all callers may
 * sleep instead. */
static void check_driven(int from, int to, rank_main *run) {
    for (int p = from; p <= to; p = more_ranks(p)) {
        atomic_int driven = 0;
        for (int i = 0; i < TRIES && !driven; i++) ranks_run(p, run, &driven);
        CHECK_CASE(driven > 0, "%d ranks", p);
    }
}

/* Some ranks are late, so that a caller stops stepping before its tensor is done. */
static void drive_one(struct caller *c, int round) {
    OWN(work_free) struct work work;
    DROPPED struct hvd_handle *h = new_handle();
    bool drives = c->number, late = (round + c->me->rank) % 10 == 0;
    work_init(&work, c->me, plain_sum(1000), numbered("driven", 2 * c->number + round % 2), true);
    h->tensor = work.tensor;
    h->tensor.request.waited = drives;
    if (late) clock_nap(2e-3);
    submit(c->me, h);
    if (drives) drive(c->me, h, c->driven);
    double began = clock_now();
    check_finished(h, PATIENCE, HVD_OK);
    CHECK_CASE(clock_now() - began < PATIENCE, "caller %d, round %d", c->number, round);
    CHECK_CASE(work_right(&work), "caller %d, round %d", c->number, round);
}

static void *call(void *arg) {
    for (int round = 0; round < ROUNDS; round++) drive_one(arg, round);
    return NULL;
}

ENGINES_BY(callers_main, arg, spin(ranks, rank)) {
    struct caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++)
        callers[i] = (struct caller){.me = me, .number = i, .driven = arg};
    threads_run(CALLERS, call, callers, sizeof *callers);
}

TEST(test_a_caller_that_waits_runs_the_engine) { check_driven(1, 4, callers_main); }

/* A handle is used again and again, also after an error. The last call is refused immediately, and
 * submits nothing. */
ENGINES_BY(again_main, arg, spin(ranks, rank)) {
    float in[64], out[64];
    DROPPED struct hvd_handle *h = new_handle();
    h->tensor.request = request_of("again", 64);
    h->tensor.request.waited = true;
    for (int round = 0; round <= ROUNDS; round++) {
        bool wrong = round == ROUNDS / 2;
        h->tensor.request.op = wrong && me->rank ? HVD_MAX : HVD_SUM;
        for (int i = 0; i < 64; i++) in[i] = (float)(i + round);
        handle_renew(h, in, out);
        REQUIRE(engine_submit(me->engine, &h->tensor, ERR) == HVD_OK);
        drive(me, h, arg);
        check_finished(h, PATIENCE, wrong ? HVD_MISMATCH : HVD_OK);
        for (int i = 0; i < 64 && !wrong; i++) CHECK_INT(out[i], me->ranks->size * (i + round));
    }
    handle_renew(h, in, out);
    handle_refuse(h, &(hvd_error){.code = HVD_INVALID});
    check_finished(h, 0, HVD_INVALID);
}

TEST(test_a_handle_is_used_again) { check_driven(2, 4, again_main); }

#if defined __x86_64__ || defined __i386__
enum { FLUSH = 0x8040 }; /* the DAZ and FTZ bits */
static floats_mode floats_flushing(void) {
    floats_mode before = _mm_getcsr();
    _mm_setcsr(before | FLUSH);
    return before;
}
/* Returns false if the library has changed the mode that the caller had set. */
static bool floats_restore_and_tell(floats_mode mode) {
    bool flushes = (_mm_getcsr() & FLUSH) == FLUSH;
    _mm_setcsr(mode);
    return flushes;
}
#else
static floats_mode floats_flushing(void) { return floats_exact(); }
static bool floats_restore_and_tell(floats_mode mode) {
    floats_restore(mode);
    return true;
}
#endif

/* The caller's thread flushes subnormal numbers, as TensorFlow's threads do. It must get the same
 * sum as the other ranks. */
ENGINES_BY(flushing_main, arg, spin(ranks, rank)) {
    const float small = 1e-41f;
    float sum[64];
    for (int round = 0; round < ROUNDS; round++) {
        OWN(work_free) struct work work;
        work_init(&work, me, plain_sum(64), "small", true);
        DROPPED struct hvd_handle *h = new_handle();
        for (int i = 0; i < 64; i++) sum[i] = small;
        h->tensor = work.tensor;
        h->tensor.request.dtype = HVD_FLOAT32;
        h->tensor.in = h->tensor.out = sum;
        h->tensor.request.waited = true;
        submit(me, h);
        floats_mode mode = floats_flushing();
        drive(me, h, arg);
        CHECK(floats_restore_and_tell(mode));
        CHECK(handle_finish(h, PATIENCE, ERR));
        CHECK(memcmp(&sum[63], &(float){2 * small}, sizeof small) == 0);
    }
}

TEST(test_a_caller_that_flushes_small_numbers_does_not_change_the_sum) {
    check_driven(2, 2, flushing_main);
}

static void *wait_long(void *handle) {
    CHECK(!handle_finish(*(struct hvd_handle **)handle, PATIENCE, ERR));
    return NULL;
}

TEST(test_a_waiter_goes_on_at_once_when_its_handle_is_given_up) {
    enum { WAITERS = 3 };
    struct hvd_handle *h = new_handle(), *same[WAITERS] = {h, h, h};
    double begin = clock_now();
    handle_lend(h);
    pthread_t other;
    REQUIRE(thread_start(&other, wait_long, &h, "waits", ERR) == HVD_OK);
    hvd_give_up(h);
    thread_join(other);
    threads_run(WAITERS, wait_long, same, sizeof *same); /* waits after hvd_give_up end at once */
    CHECK(clock_now() - begin < PATIENCE / 2);
    h->tensor.complete(h, NULL);
    check_finished(h, PATIENCE, HVD_OK);
    hvd_drop(h);
}

/* In the child the handle's mutex may stay locked for ever. */
TEST(test_a_forked_child_does_not_wait_for_its_parents_handle) {
    struct hvd_handle *h = new_handle();
    handle_lend(h);
    mutex_lock(&h->mutex);
    pid_t child = fork();
    if (!child) {
        bool refused = handle_finish(h, PATIENCE, ERR) && ERR->code == HVD_NOT_INITIALIZED;
        hvd_drop(h);
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    mutex_unlock(&h->mutex);
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
    h->tensor.complete(h, NULL);
    check_finished(h, PATIENCE, HVD_OK);
    hvd_drop(h);
}
