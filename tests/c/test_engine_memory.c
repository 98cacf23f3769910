/* A rank on which memory is short: all ranks get the same error, and the job continues. */
#include "check.h"

#include "engine_case.h"

#include <malloc.h>
#include <sys/resource.h>

static void submit_without_memory(struct engine_rank *me, struct work *w) {
    struct rlimit old;
    getrlimit(RLIMIT_AS, &old);
    engine_cork(me->engine, true); /* meanwhile the engine needs no memory */
    setrlimit(RLIMIT_AS, &(struct rlimit){.rlim_max = old.rlim_max});
    OK(work_submit(w, ERR));
    setrlimit(RLIMIT_AS, &old);
    engine_cork(me->engine, false);
}

/* The last rank lacks memory in the first of two rounds. */
ENGINES(short_main, arg) {
    char (*texts)[1024] = arg;
    OWN(work_free) struct work w;
    work_init(&w, me, plain_sum(1 << 20), "gradient", false);
    w.tensor.request.codec.kind = HVD_CODEC_FLOAT16; /* exact for the small numbers of plain_sum */
    bool fails = me->rank == me->ranks->size - 1;
    if (fails) submit_without_memory(me, &w);
    ranks_meet(me->ranks);
    if (!fails) OK(work_submit(&w, ERR));
    engine_rank_wait(me);
    CHECK_CODE(w.error.code, HVD_NO_MEMORY, w.error);
    CHECK_INT(w.error.blamed[0], me->ranks->size - 1);
    memcpy(texts[me->rank], w.error.text, sizeof texts[me->rank]);
    w.completions = 0;
    OK(work_submit(&w, ERR));
    engine_rank_wait(me);
    check_work(&w);
}

TEST(test_a_rank_without_memory_fails_the_tensor_on_all_ranks) {
    char texts[3][1024];
    if (CHECK_SLOW) return; /* with a sanitizer, a refused malloc ends the program */
    /* malloc asks the kernel for large memory, and no thread has reserved memory of its own */
    REQUIRE(mallopt(M_MMAP_THRESHOLD, 1 << 20) && mallopt(M_ARENA_MAX, 1));
    ranks_run(3, short_main, texts);
    CHECK_HAS(texts[0], "tensor 'gradient': no data from rank 2: no memory");
    for (int i = 1; i < 3; i++) CHECK_TEXT(texts[i], texts[0]);
}

/* hvd_prepare leaves out splits that it has no memory to copy, here on the last rank. */
ENGINES(no_splits_main, arg) {
    char (*texts)[1024] = arg;
    OWN(work_free) struct work w;
    static const size_t ROWS[] = {1, 2, 3, 1, 2, 3, 1, 2, 3};
    struct coll_case pairs = {.kind = HVD_ALLTOALL, .dtype = HVD_FLOAT32, .n = 5, .parts = ROWS};
    work_init(&w, me, pairs, "pairs", false);
    for (int round = 0; round < 2; round++) {
        work_fill(&w);
        bool fails = !round && me->rank == me->ranks->size - 1;
        w.tensor.splits = fails ? NULL : w.splits;
        w.tensor.nsplits = fails ? 0 : (size_t)me->ranks->size;
        OK(work_submit(&w, ERR));
        engine_rank_wait(me);
        CHECK_CODE(w.error.code, round ? HVD_OK : HVD_NO_MEMORY, w.error);
        if (!round) memcpy(texts[me->rank], w.error.text, sizeof texts[me->rank]);
    }
    check_work(&w);
}

TEST(test_a_rank_without_memory_for_splits_fails_the_tensor_on_all_ranks) {
    char texts[3][1024];
    ranks_run(3, no_splits_main, texts);
    CHECK_HAS(texts[0], "tensor 'pairs': no data from rank 2: no memory for its splits");
    for (int i = 1; i < 3; i++) CHECK_TEXT(texts[i], texts[0]);
}

/* ---- groups over sockets ---- */

static _Thread_local bool refuses;

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void *__libc_calloc(size_t, size_t);

/* Refuses this thread's memory, if the test asks for it. */
void *calloc(size_t n, size_t bytes) { return refuses ? NULL : __libc_calloc(n, bytes); }
#endif

/* Rank 1 has no descriptor left to open a group, or no memory, and tells the other ranks. */
static void lack(struct ranks *ranks, int rank, void *memory) {
    static const int ALL[] = {0, 1, 2};
    struct transport *t = rank_transport(ranks, rank), *group = NULL;
    struct rlimit old;
    hvd_error err = {0};
    if (rank == 1) {
        getrlimit(RLIMIT_NOFILE, &old);
        if (!memory) setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_max = old.rlim_max});
        refuses = memory;
        FAILS(sockets_group(&group, t, ALL, 3, 5, false, ERR), HVD_NO_MEMORY);
        refuses = false;
        setrlimit(RLIMIT_NOFILE, &old);
    }
    ranks_meet(ranks);
    if (rank == 1) return;
    CHECK_CODE(sockets_group(&group, t, ALL, 3, 5, false, &err), HVD_RANK_LEFT, err);
    CHECK(err.nblamed == 1 && err.blamed[0] == 1);
}

TEST(test_a_group_that_one_rank_cannot_open_fails) {
    static const int APART[] = {0, 1, 2};
    ranks_run_by(0, 3, hub_on(3, APART, false), lack, NULL);
    if (!CHECK_SLOW) ranks_run_by(0, 3, hub_on(3, APART, false), lack, "of memory");
}
