/* If a link breaks, everything fails on every rank with the first cause. An idle engine uses no
 * CPU. */
#include "engine_case.h"

struct breaking {
    int rank;
    bool alone; /* ranks also submit tensors that no other rank submits */
    size_t n;
};

enum { WORKS = 6 };

static void check_cause(int code, const hvd_error *error, int broken) {
    char cause[64];
    snprintf(cause, sizeof cause, "rank %d's link is broken", broken);
    CHECK_CODE(code, HVD_TRANSPORT, *error);
    CHECK_HAS(error->text, cause);
}

static void submit_until_closed(struct engine_rank *me, int broken) {
    OWN(work_free) struct work w;
    work_init(&w, me, plain_sum(3), "later", false);
    for (int i = 0; i < 3; i++) check_cause(work_submit(&w, ERR), ERR, broken);
    CHECK_INT(w.completions, 0);
}

ENGINES(break_main, arg) {
    const struct breaking *b = arg;
    struct work works[WORKS];
    hvd_error err = {0};
    check_in_order(me, "before");
    ranks_meet(me->ranks);
    if (me->rank == b->rank) local_hub_break(me->ranks->hub, me->rank);
    ranks_meet(me->ranks);
    for (int i = 0; i < WORKS; i++) {
        char name[32];
        bool alone = b->alone && i % 2;
        snprintf(name, sizeof name, "work.%d.%d", i, alone ? me->rank : -1);
        work_init(&works[i], me, plain_sum(b->n), name, false);
    }
    int submitted = 0; /* the failure may happen between two submissions */
    while (submitted < WORKS && work_submit(&works[submitted], &err) == HVD_OK) submitted++;
    if (submitted < WORKS) check_cause(err.code, &err, b->rank);
    engine_rank_wait(me);
    for (int i = 0; i < submitted; i++) {
        check_cause(works[i].error.code, &works[i].error, b->rank);
        CHECK_INT(works[i].completions, 1);
    }
    CHECK(engine_ended(me->engine, PATIENCE)); /* true although this rank has not left */
    CHECK(engine_failed(me->engine, &err));
    check_cause(err.code, &err, b->rank);
    submit_until_closed(me, b->rank);
    for (int i = 0; i < WORKS; i++) work_free(&works[i]);
}

TEST(test_a_broken_link_fails_all_tensors_with_the_first_cause) {
    for (int p = 2; p <= 5; p = more_ranks(p)) {
        for (int rank = 0; rank < p; rank++) {
            bool alone = (p + rank) % 2;
            ranks_run_to_break(p, break_main, &(struct breaking){rank, alone, p % 2 ? 100 : 20011});
        }
    }
}

/* The splits are changed while the tensor is under way. The error must name the rank by its number
 * in the job. */
static const int JOB_RANKS[] = {5, 7};

ENGINES_BY(splits_main, arg, rank_transport(ranks, rank)->job_ranks = JOB_RANKS) {
    OWN(work_free) struct work w;
    work_init(
        &w, me,
        (struct coll_case){.kind = HVD_ALLTOALL, .n = 1, .parts = (const size_t[]){1, 1, 1, 1}},
        "dealt", false);
    engine_cork(me->engine, true);
    OK(work_submit(&w, ERR));
    if (me->rank) w.splits[0] = 9;
    engine_cork(me->engine, false);
    engine_rank_wait(me);
    CHECK_CODE(w.error.code, HVD_TRANSPORT, w.error);
    CHECK_HAS(w.error.text, "the splits of rank 7 do not fit its 2 rows");
}

TEST(test_an_error_about_splits_has_the_rank_of_the_job) { ranks_run(2, splits_main, NULL); }

/* A rank's link breaks after that rank has left, or while the other ranks leave. The job must still
 * end. */
ENGINES(leaving_main, arg) {
    const int *broken = arg;
    check_in_order(me, "before");
    ranks_meet(me->ranks);
    if (me->rank == *broken) local_hub_break(me->ranks->hub, me->rank);
}

TEST(test_a_job_ends_if_a_link_breaks_while_ranks_leave) {
    for (int broken = 0; broken < 3; broken++) ranks_run_to_break(3, leaving_main, &broken);
}

ENGINES(idle_main, arg) {
    double *least = arg;
    check_in_order(me, "before");
    /* repeated, because a try may include the end of earlier work or run on a busy machine */
    for (int i = 0; i < 8; i++) {
        ranks_meet(me->ranks);
        if (me->rank == 0) {
            double before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
            clock_nap(0.5);
            *least = fmin(*least, cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - before);
        }
        ranks_meet(me->ranks);
    }
}

/* CPU time in half a second: four threads that poll every millisecond use 15 ms, one thread that
 * spins uses 500 ms. */
TEST(test_an_idle_engine_uses_no_cpu) {
    double least = 1;
    ranks_run(4, idle_main, &least);
    CHECK_NEAR(least, 0, 2e-3);
}

/* A completion may submit a tensor, because the engine calls completions without holding a lock. */
struct relay {
    struct work work;
    int left;
};

static void relayed(void *arg, const hvd_error *error) {
    struct relay *r = arg;
    bool more = --r->left > 0 && !error;
    if (more) OK(work_submit(&r->work, ERR));
    work_completed(&r->work, error);
}

ENGINES(relay_main, arg) {
    struct relay r = {.left = 100};
    work_init(&r.work, me, plain_sum(3), "relay", false);
    r.work.tensor.complete = relayed;
    r.work.tensor.arg = &r;
    OK(work_submit(&r.work, ERR));
    engine_rank_wait(me);
    CHECK_INT(r.work.completions, 100);
    CHECK_INT(r.work.error.code, HVD_OK);
    work_free(&r.work);
}

TEST(test_a_completion_may_submit_a_tensor) {
    ranks_run(1, relay_main, NULL);
    ranks_run(3, relay_main, NULL);
}
