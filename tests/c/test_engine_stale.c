/* An error of the coordinator must reach the submission that it is about and no other one, though a
 * rank may have submitted the same name again, or not yet, when the error arrives. */
#include "engine_case.h"

/* Rank 1 leaves right after its last broadcast; the root, first to be done, submits the name again
 * and gets that refused, while the others are still receiving the broadcast that all had submitted.
 */
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

TEST(test_error_of_the_next_round) {
    for (int i = 0; i < 20; i++) ranks_run(4, next_round_main, NULL);
}

/* Both ranks submit, are refused and submit again as fast as they can, after rank 2 has left. Each
 * submission ends once, with HVD_RANK_LEFT, and the job ends as it should. */
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

TEST(test_refused_again_and_again) {
    for (int i = 0; i < 10; i++) ranks_run(3 + i % 2, hasty_main, NULL);
}

/* Ranks come to a tensor at times around the stall limit: it runs on all or stalls, and a rank
 * whose submission came after the stall waits for the next round; the job goes on. */
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
    ranks_meet(me->ranks); /* who comes late to the last round stalls: none may have left by then */
}

TEST(test_submitted_while_it_stalls) { ranks_run(3, stalling_main, NULL); }
