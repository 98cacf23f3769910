/* Ranks that leave early, with work pending, or all together; engines that are stopped without
 * leaving; errors that must reach the right submission and no other. test_coordinator.c tests the
 * coordinator's part. */
#include "engine_case.h"

struct leaving {
    int rank;
    bool after; /* the rank leaves before (false) or after (true) the other ranks submit */
};

static void check_left(struct work *w, int left) {
    char name[32];
    snprintf(name, sizeof name, "rank %d", left);
    CHECK_INT(w->completions, 1);
    CHECK_CODE(w->error.code, HVD_RANK_LEFT, w->error);
    CHECK_HAS(w->error.text, w->tensor.request.name);
    CHECK_HAS(w->error.text, name);
    CHECK_HAS(w->error.text, "out of data");
    CHECK_INT(w->error.nblamed, 1);
    CHECK_INT(w->error.blamed[0], left);
    CHECK_TEXT(w->error.tensor, w->tensor.request.name);
}

static void submit_for_nothing(struct engine_rank *me, int left, const char *name) {
    OWN(work_free) struct work w;
    work_start(&w, me, plain_sum(9), name, false);
    if (engine_rank_wait(me)) check_left(&w, left);
}

ENGINES(early_main, arg) {
    const struct leaving *l = arg;
    struct work w;
    check_in_order(me, "together");
    work_init(&w, me, plain_sum(9), "together", false); /* the tensor is cached by now */
    bool leaves = me->rank == l->rank;
    if (leaves && !l->after) engine_leave(me->engine, "out of data");
    if (!l->after) ranks_meet(me->ranks);
    if (!leaves) OK(work_submit(&w, ERR));
    if (l->after) ranks_meet(me->ranks);
    if (leaves && l->after) engine_leave(me->engine, "out of data");
    if (!leaves && engine_rank_wait(me)) check_left(&w, l->rank);
    if (!leaves) submit_for_nothing(me, l->rank, "new");
    if (!leaves) submit_for_nothing(me, l->rank, "together");
    if (leaves) CHECK(work_submit(&w, ERR) != HVD_OK);
    CHECK_INT(w.completions, leaves ? 0 : 1);
    work_free(&w);
    ranks_meet(me->ranks);
}

TEST(test_a_tensor_fails_if_a_rank_leaves_before_submitting_it) {
    for (int p = 2; p <= 5; p = more_ranks(p)) {
        for (int rank = 0; rank < p; rank++) {
            ranks_run(p, early_main, &(struct leaving){rank, false});
            ranks_run(p, early_main, &(struct leaving){rank, true});
        }
    }
}

/* All ranks leave while tensors that all ranks have submitted are under way. */
ENGINES_TEST(test_tensors_that_all_ranks_submitted_run_after_a_leave, ranks_run, 1, 5) {
    enum { WORKS = 20 };
    struct work works[WORKS];
    for (int i = 0; i < WORKS; i++) {
        work_start(&works[i], me, plain_sum((size_t)i * 50), numbered("work", i), false);
    }
    engine_leave(me->engine, "done");
    engine_leave(me->engine, "done twice");
    CHECK(engine_ended(me->engine, PATIENCE));
    engine_rank_wait(me);
    CHECK(!engine_failed(me->engine, ERR));
    for (int i = 0; i < WORKS; i++) {
        check_work(&works[i]);
        work_free(&works[i]);
    }
}

/* The rank leaves while a cork holds a tensor back, as if another thread had begun to submit a
 * group of tensors. */
ENGINES_TEST(test_corked_tensors_still_run_after_a_leave, ranks_run, 1, 3) {
    OWN(work_free) struct work w;
    engine_cork(me->engine, true);
    work_start(&w, me, plain_sum(3), "corked", false);
    engine_leave(me->engine, "done");
    CHECK(engine_ended(me->engine, PATIENCE));
    engine_rank_wait(me);
    check_work(&w);
}

/* After engine_stop without engine_leave, each pending tensor fails once, and nothing hangs. */
ENGINES_TEST(test_an_engine_stopped_without_leaving_fails_pending_tensors_once, ranks_run, 2, 4) {
    OWN(work_free) struct work w;
    check_in_order(me, "together");
    work_start(&w, me, plain_sum(3), numbered("only", me->rank), false);
    ranks_meet(me->ranks);
    engine_rank_stop(me);
    CHECK_INT(w.completions, 1);
    CHECK(w.error.code != HVD_OK || me->ranks->size == 1);
}

/* Starts engines one after another on the same transport; every second engine gets no work. */
ENGINES(life_main, arg) {
    if (*(const bool *)arg) check_in_order(me, "one");
}

static void lives_main(struct ranks *ranks, int rank, void *arg) {
    for (int i = 0; i < 20; i++) {
        life_main(ranks, rank, &(bool){i % 2});
        ranks_meet(ranks);
    }
}

TEST(test_one_transport_serves_many_engines_in_turn) { ranks_run(3, lives_main, NULL); }

/* ---- a rank without data, a rank that stalls: the job continues ---- */

/* The last rank has no data in the first of three rounds. All ranks get the error. The last rank
 * does not wait for the other ranks: its second round matches their second round. */
ENGINES(failed_main, arg) {
    char (*texts)[1024] = arg;
    struct work rounds[3];
    bool fails = me->rank == me->ranks->size - 1;
    for (int i = 0; i < 3; i++) work_init(&rounds[i], me, plain_sum(5), "gradient", false);
    rounds[0].tensor.request.failed = fails;
    OK(work_submit(&rounds[0], ERR));
    if (fails) OK(work_submit(&rounds[1], ERR));
    ranks_meet(me->ranks);
    if (!fails) {
        engine_rank_wait(me);
        OK(work_submit(&rounds[1], ERR));
    }
    engine_rank_wait(me);
    CHECK_CODE(rounds[0].error.code, HVD_FAILED, rounds[0].error);
    memcpy(texts[me->rank], rounds[0].error.text, sizeof texts[me->rank]);
    check_work(&rounds[1]);
    OK(work_submit(&rounds[2], ERR));
    engine_rank_wait(me);
    check_work(&rounds[2]);
    for (int i = 0; i < 3; i++) work_free(&rounds[i]);
}

TEST(test_a_rank_without_data_fails_the_tensor_on_every_rank) {
    for (int p = 1; p <= 4; p = more_ranks(p)) {
        char texts[MOST_RANKS][1024], expected[64];
        snprintf(expected, sizeof expected, "tensor 'gradient': no data from rank %d: ", p - 1);
        ranks_run(p, failed_main, texts);
        for (int i = 0; i < p; i++) {
            CHECK_HAS(texts[i], expected);
            CHECK_TEXT(texts[i], texts[0]);
        }
    }
}

/* In the first round all ranks except rank 1 submit, in the second round only rank 1. The limit is
 * long compared with usual delays. */
ENGINES_BY(stall_main, arg, config.options.stall_failure = 3) {
    struct work w;
    for (int round = 0; round < 2; round++) {
        work_init(&w, me, plain_sum(5), "stuck", false);
        if ((round == 0) == (me->rank != 1)) {
            OK(work_submit(&w, ERR));
            engine_rank_wait(me);
            CHECK_INT(w.error.code, HVD_STALLED);
            CHECK_HAS(w.error.text, "stuck");
            CHECK_HAS(w.error.text, "rank 1");
        }
        work_free(&w);
        ranks_meet(me->ranks);
        check_in_order(me, "not.stuck");
    }
    check_in_order(me, "stuck");
}

TEST(test_a_stalled_tensor_fails_and_later_tensors_run) {
    ranks_run(2, stall_main, NULL);
    ranks_run(4, stall_main, NULL);
}

/* ---- when an error arrives, the rank may have submitted the name again, or not yet ---- */

/* Rank 1 leaves right after a broadcast. The root, which finishes first, submits the name again and
 * gets an error. The other ranks must still receive the first broadcast. */
ENGINES(next_round_main, arg) {
    OWN(work_free) struct work w, again;
    struct coll_case c = plain_sum(400003);
    c.kind = HVD_BROADCAST;
    work_init(&w, me, c, "weights", false);
    work_init(&again, me, c, "weights", false);
    OK(work_submit(&w, ERR));
    if (me->rank == 1) {
        engine_leave(me->engine, "out of data");
    } else if (me->rank == 0) {
        engine_rank_wait(me);
        OK(work_submit(&again, ERR));
        engine_rank_wait(me);
        CHECK_CODE(again.error.code, HVD_RANK_LEFT, again.error);
    }
    engine_rank_wait(me);
    check_work(&w);
}

TEST(test_an_error_of_the_next_use_of_a_name_does_not_fail_the_present_use) {
    for (int i = 0; i < 20; i++) ranks_run(4, next_round_main, NULL);
}

/* After rank 2 has left, the other ranks submit, are refused and submit again, without a pause.
 * Each submission must fail once with HVD_RANK_LEFT, and the job must end normally. */
ENGINES(hasty_main, arg) {
    check_in_order(me, "hasty");
    for (int i = 0; i < 200 && me->rank != 2; i++) {
        OWN(work_free) struct work w;
        work_start(&w, me, plain_sum(9), "hasty", false);
        engine_rank_wait(me);
        CHECK_INT(w.completions, 1);
        if (!CHECK_CODE(w.error.code, HVD_RANK_LEFT, w.error)) i = 200;
    }
}

TEST(test_each_submission_after_a_leave_fails_once) {
    for (int i = 0; i < 10; i++) ranks_run(3 + i % 2, hasty_main, NULL);
}

/* Ranks submit a tensor at times around the stall limit, so the tensor runs or fails. If it fails
 * before a rank submits it, this rank's submission matches the other ranks' next submissions. The
 * job must continue. */
ENGINES_BY(stalling_main, arg, config.options.stall_failure = 0.003) {
    uint64_t random = (uint64_t)me->rank;
    for (int i = 0; i < 150; i++) {
        OWN(work_free) struct work w;
        work_init(&w, me, plain_sum(9), "slow", false);
        ranks_meet(me->ranks);
        clock_nap(0.004 * fabs(random_unit(&random)));
        OK(work_submit(&w, ERR));
        engine_rank_wait(me);
        CHECK_CASE(w.error.code == HVD_OK || w.error.code == HVD_STALLED, "code %d: %s",
                   w.error.code, w.error.text);
        if (w.error.code == HVD_OK) CHECK(work_right(&w));
    }
    ranks_meet(me->ranks); /* no rank may leave before the last round ends */
}

TEST(test_a_job_goes_on_if_ranks_submit_at_times_around_the_stall_limit) {
    ranks_run(3, stalling_main, NULL);
}
