/* A rank that is killed or stopped while ranks add a tensor on the fast path in a window. */
#include "handle_case.h"

#include <sys/mman.h>

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

/* Rank 1 reaches its chunk and stops there; rank 0 reaches its wait for that chunk. */
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

/* Callers wait for each other without a limit. With a limit, the engine's thread takes over, and
 * gets the fault instead of the callers. */
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

TEST(test_a_wait_on_the_fast_path_ends_if_a_rank_is_killed_after_the_engines_ended) {
    in_its_chunk(killed_main);
}

/* On the fast path no tensor is in the engine, but the engine must ask the ranks for signs of life;
 * otherwise the other ranks wait for ever, without an error. */
TEST(test_a_rank_stopped_on_the_fast_path_is_named) { in_its_chunk(stopped_main); }
