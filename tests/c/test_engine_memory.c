/* A rank on which memory is short: all ranks get the same error, and the job continues. */
#include "check.h"

#include "engine_case.h"

#include <malloc.h>

static void submit_without_memory(struct engine_rank *me, struct work *w) {
    engine_cork(me->engine, true); /* a corked engine takes no tensors, so it needs no memory */
    struct rlimit old = limit_to(RLIMIT_AS, 0);
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
    hvd_error err = {0};
    if (rank == 1) {
        struct rlimit old = limit_to(RLIMIT_NOFILE, memory ? RLIM_INFINITY : 0);
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
