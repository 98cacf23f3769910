/* One handle, several threads: each learns how the tensor ended; nothing is freed too early. */
#include "engine_case.h"

#include "engine/handle.h"

#include <sys/wait.h>

enum { HANDLES = 60, ASKERS = 4, WRONG = 7 };

struct started {
    struct work work;
    struct hvd_handle *handle;
};

/* Every WRONG-th is larger on rank 0, which is an error on all ranks. */
static void start(struct started *s, struct engine_rank *me, int number) {
    char name[32];
    hvd_error err = {0};
    snprintf(name, sizeof name, "shared.%d", number);
    work_init(&s->work, me, plain_sum(number % WRONG || me->rank ? 1000 : 1001), name, true);
    REQUIRE((s->handle = handle_new(&err)) != NULL);
    s->handle->tensor = s->work.tensor;
    handle_lend(s->handle);
    REQUIRE(engine_submit(me->engine, &s->handle->tensor, &err) == HVD_OK);
}

static void check_ended(struct started *s, int number, int code, const hvd_error *err) {
    bool wrong = number % WRONG == 0 && s->work.owner->ranks->size > 1;
    CHECK_CASE(code == 1, "%d", number);
    CHECK_CODE(err->code, wrong ? HVD_MISMATCH : HVD_OK, *err);
    if (!wrong) CHECK_CASE(work_right(&s->work), "%d", number);
}

/* Some threads poll, some wait; all ask again when the tensor is done. */
struct asker {
    struct started *all;
    pthread_t thread;
    bool polls;
};

static void *ask(void *arg) {
    struct asker *a = arg;
    for (int i = 0; i < HANDLES; i++) {
        hvd_error err = {0};
        while (!handle_finish(a->all[i].handle, a->polls ? 0 : PATIENCE, a->polls ? NULL : &err));
        check_ended(&a->all[i], i, handle_finish(a->all[i].handle, PATIENCE, &err), &err);
    }
    return NULL;
}

static void shared_main(struct ranks *ranks, int rank, void *arg) {
    struct engine_rank me;
    struct started all[HANDLES];
    struct asker askers[ASKERS];
    hvd_error err = {0};
    (void)arg;
    engine_rank_start(&me, ranks, rank, &DEFAULT_CONFIG);
    for (int i = 0; i < HANDLES; i++) start(&all[i], &me, i);
    for (int i = 0; i < ASKERS; i++) {
        askers[i] = (struct asker){.all = all, .polls = i % 2};
        REQUIRE(thread_start(&askers[i].thread, ask, &askers[i], "asker", &err) == HVD_OK);
    }
    for (int i = 0; i < ASKERS; i++) thread_join(askers[i].thread);
    engine_rank_end(&me);
    for (int i = 0; i < HANDLES; i++) {
        check_ended(&all[i], i, handle_finish(all[i].handle, 0, &err),
                    &err); /* without an engine */
        handle_drop(all[i].handle);
        work_free(&all[i].work);
    }
}

TEST(test_threads_share_handles) {
    for (int p = 1; p <= 3; p++) ranks_run(p, shared_main, NULL);
}

static void dropped_main(struct ranks *ranks, int rank, void *arg) {
    struct engine_rank me;
    struct started all[HANDLES];
    (void)arg;
    engine_rank_start(&me, ranks, rank, &DEFAULT_CONFIG);
    for (int i = 0; i < HANDLES; i++) {
        start(&all[i], &me, i);
        handle_drop(all[i].handle);
    }
    engine_rank_end(&me);
    for (int i = 0; i < HANDLES; i++) work_free(&all[i].work);
}

TEST(test_a_handle_dropped_under_way) { ranks_run(2, dropped_main, NULL); }

/* Its process is another one, and its monitor may be locked for ever. */
TEST(test_a_forked_child_does_not_wait_for_its_parents_handle) {
    hvd_error err = {0};
    struct hvd_handle *h = handle_new(&err);
    handle_lend(h);
    monitor_lock(&h->monitor);
    pid_t child = fork();
    if (!child) {
        bool refused = handle_finish(h, PATIENCE, &err) && err.code == HVD_NOT_INITIALIZED;
        handle_drop(h);
        _exit(refused ? 0 : 1);
    }
    int status = -1;
    monitor_unlock(&h->monitor);
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
    h->tensor.complete(h, NULL);
    CHECK(handle_finish(h, PATIENCE, &err));
    handle_drop(h);
}
