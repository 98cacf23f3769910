/* Ranks that leave: early, with work pending, all at once; and engines that are stopped without. */
#include "engine_case.h"

struct leaving {
    int rank;
    bool after; /* the others submit before the rank leaves, or after */
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
    work_init(&w, me, plain_sum(9), "together", false); /* cached by now */
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

TEST(test_a_tensor_fails_if_a_rank_leaves_before_it) {
    for (int p = 2; p <= 5; p++) {
        for (int rank = 0; rank < p; rank++) {
            ranks_run(p, early_main, &(struct leaving){rank, false});
            ranks_run(p, early_main, &(struct leaving){rank, true});
        }
    }
}

/* Everybody leaves with work under way that all have submitted: it still runs. */
ENGINES_TEST(test_pending_work_still_runs, ranks_run, 1, 5) {
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

/* A thread leaves while another one has begun a group of tensors. */
ENGINES_TEST(test_corked_work_still_runs, ranks_run, 1, 3) {
    OWN(work_free) struct work w;
    engine_cork(me->engine, true);
    work_start(&w, me, plain_sum(3), "corked", false);
    engine_leave(me->engine, "done");
    CHECK(engine_ended(me->engine, PATIENCE));
    engine_rank_wait(me);
    check_work(&w);
}

/* engine_stop without leave: what is pending fails, once, and nothing hangs. */
ENGINES_TEST(test_stop_without_leave, ranks_run, 2, 4) {
    OWN(work_free) struct work w;
    check_in_order(me, "together");
    work_start(&w, me, plain_sum(3), numbered("only", me->rank), false);
    ranks_meet(me->ranks);
    engine_rank_stop(me);
    CHECK_INT(w.completions, 1);
    CHECK(w.error.code != HVD_OK || me->ranks->size == 1);
}

/* Engines one after the other on the same transports, every second one without work. */
ENGINES(life_main, arg) {
    if (*(const bool *)arg) check_in_order(me, "one");
}

static void lives_main(struct ranks *ranks, int rank, void *arg) {
    for (int i = 0; i < 20; i++) {
        life_main(ranks, rank, &(bool){i % 2});
        ranks_meet(ranks);
    }
}

TEST(test_many_lives_of_a_transport) { ranks_run(3, lives_main, NULL); }
