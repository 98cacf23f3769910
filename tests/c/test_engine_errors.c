/* A rank that has no data, and one that stalls: it fails one tensor, with one text on every rank,
 * and the job goes on. What the coordinator refuses, and how: test_coordinator.c. */
#include "engine_case.h"

/* The last rank has no data in the first of three rounds. All ranks get the error, and it need not
 * wait for that: its second round pairs with the second round of the others. */
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
    for (int p = 1; p <= 4; p++) {
        char texts[MOST_RANKS][1024], expected[64];
        snprintf(expected, sizeof expected, "tensor 'gradient': no data from rank %d: ", p - 1);
        ranks_run(p, failed_main, texts);
        for (int i = 0; i < p; i++) {
            CHECK_HAS(texts[i], expected);
            CHECK_TEXT(texts[i], texts[0]);
        }
    }
}

/* Rank 1 never submits; later it submits alone. */
ENGINES_BY(stall_main, arg, config.options.stall_failure = 3) { /* long beside usual delays */
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

TEST(test_a_stalled_tensor_fails_and_later_ones_run) {
    ranks_run(2, stall_main, NULL);
    ranks_run(4, stall_main, NULL);
}
