/* What users do wrong: ranks that disagree, names used twice, values out of range, ranks that
 * stall. It fails one tensor, with one text on every rank, and the job goes on. */
#include "engine_case.h"

/* One rank's sum has another length: all get the same text. test_coordinator.c has all fields. */
struct disagreeing {
    int odd_rank;
    char texts[MOST_RANKS][1024];
};

ENGINES(disagree_main, arg) {
    struct disagreeing *d = arg;
    struct work w;
    for (int round = 0; round < 2; round++) {
        work_start(&w, me, plain_sum(me->rank == d->odd_rank ? 18 : 17), "model.weight", true);
        engine_rank_wait(me);
        CHECK_CODE(w.error.code, HVD_MISMATCH, w.error);
        CHECK_INT(w.completions, 1);
        memcpy(d->texts[me->rank], w.error.text, sizeof w.error.text);
        ranks_meet(me->ranks);
        CHECK_TEXT(w.error.text, d->texts[0]);
        CHECK_HAS(w.error.text, "model.weight");
        CHECK_HAS(w.error.text, "(18,)");
        work_free(&w);
        check_in_order(me, "other");
        ranks_meet(me->ranks);
    }
    check_in_order(me, "model.weight");
}

TEST(test_disagreements) {
    for (int p = 2; p <= 4; p++)
        for (int odd = 0; odd < p; odd++)
            ranks_run(p, disagree_main, &(struct disagreeing){odd, {{0}}});
}

/* A second tensor of a name that is under way is refused at once; the first is not disturbed. */
ENGINES(duplicate_main, arg) {
    OWN(work_free) struct work first, second;
    work_init(&first, me, plain_sum(5), "twice", false);
    work_init(&second, me, plain_sum(5), "twice", false);
    if (me->rank != 0) ranks_meet(me->ranks);
    OK(work_submit(&first, ERR));
    if (me->rank == 0) {
        FAILS(work_submit(&second, ERR), HVD_DUPLICATE);
        CHECK_HAS(ERR->text, "twice");
        ranks_meet(me->ranks);
    }
    engine_rank_wait(me);
    check_work(&first);
    CHECK_INT(second.completions, 0);
    OK(work_submit(&second, ERR));
    engine_rank_wait(me);
    check_work(&second);
}

TEST(test_duplicate) {
    ranks_run(2, duplicate_main, NULL);
    ranks_run(3, duplicate_main, NULL);
}

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

TEST(test_failed) {
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

static void refused(struct engine_rank *me, int32_t kind, int32_t dtype, int32_t root,
                    const char *name, int code) {
    OWN(work_free) struct work w;
    work_init(&w, me, plain_sum(5), name, false);
    w.tensor.request.kind = kind;
    w.tensor.request.dtype = dtype;
    w.tensor.request.root = root;
    FAILS(work_submit(&w, ERR), code);
    CHECK_HAS(ERR->text, name);
    CHECK_INT(w.completions, 0);
}

/* Refused before anything is sent: the other rank never hears of it. */
ENGINES(refused_main, arg) {
    if (me->rank == 0) {
        refused(me, HVD_ALLREDUCE, 99, 0, "bad.dtype", HVD_UNSUPPORTED);
        refused(me, 77, HVD_FLOAT32, 0, "bad.kind", HVD_INVALID);
        refused(me, HVD_BROADCAST, HVD_FLOAT32, 2, "bad.root", HVD_INVALID);
        refused(me, HVD_BROADCAST, HVD_FLOAT32, -1, "bad.root", HVD_INVALID);
        refused(me, HVD_ALLREDUCE, HVD_FLOAT32, 0, "", HVD_INVALID);
    }
    check_in_order(me, "bad.dtype");
}

TEST(test_refused) { ranks_run(2, refused_main, NULL); }

/* Rank 1 never submits; later it submits alone. */
ENGINES_BY(stall_main, arg, config.options.stall_failure = 1.5) { /* long beside usual delays */
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

TEST(test_stall) {
    ranks_run(2, stall_main, NULL);
    ranks_run(4, stall_main, NULL);
}
