/* The engine: the same tensors in another order on every rank, from several threads. */
#include "engine_case.h"

enum { NAMES = 40, MOST_THREADS = 3 };

struct plan {
    struct engine_config config;
    int names, rounds;
};

/* Tensor i of the plan, the same on every rank: all kinds, dtypes, ops and roots, sizes from 0. */
static struct coll_case planned(size_t i, int ranks, size_t *parts) {
    static const size_t SIZES[] = {0, 1, 7, 64, 1009, 3};
    struct coll_case c = {.kind = HVD_ALLREDUCE,
                          .dtype = (int)(i % HVD_DTYPES),
                          .n = SIZES[i % 6],
                          .how = {HVD_SUM, 1, 1},
                          .parts = parts};
    static const struct scaling SCALINGS[] = {
        {HVD_AVERAGE, 0.5, 4}, {HVD_MIN, 1, 1}, {HVD_PRODUCT, 1, 1}};
    if (i % 7 > 2) c.kind = (hvd_kind)(i % 7 - 2);
    c.root = (int)i % ranks;
    c.rows = i % 5 * 2;
    for (int r = 0; r < ranks * ranks; r++) parts[r] = (i + 3 * (size_t)r) % 4;
    bool reduces = c.kind == HVD_ALLREDUCE || c.kind == HVD_REDUCESCATTER;
    if (reduces && c.dtype != HVD_BOOL && i % 2) c.how = SCALINGS[i / 2 % 3];
    return c;
}

/* Works of one thread of a rank. */
struct share {
    struct work *works;
    size_t *order, first, step, n;
    pthread_t thread;
};

static void *submit_share(void *arg) {
    struct share *s = arg;
    for (size_t i = s->first; i < s->n; i += s->step) {
        OK(work_submit(&s->works[s->order[i]], ERR));
    }
    return NULL;
}

/* In random order, from 1 to 3 threads. */
static void submit_all(struct work *works, size_t n, uint64_t *random) {
    size_t order[128], threads = 1 + random_below(random, MOST_THREADS);
    struct share shares[MOST_THREADS];
    random_order(random, order, n);
    for (size_t i = 0; i < threads; i++) {
        shares[i] = (struct share){works, order, i, threads, n, 0};
        REQUIRE(thread_start(&shares[i].thread, submit_share, &shares[i], "submitter", ERR) == 0);
    }
    for (size_t i = 0; i < threads; i++) thread_join(shares[i].thread);
}

static void plan_main(struct ranks *ranks, int rank, void *arg) {
    const struct plan *plan = arg;
    struct engine_rank me;
    struct work *works = calloc((size_t)plan->names, sizeof *works);
    size_t (*parts)[MOST_RANKS * MOST_RANKS] = calloc((size_t)plan->names, sizeof *parts);
    uint64_t random = (uint64_t)(rank + 10 * ranks->size);
    engine_rank_start(&me, ranks, rank, &plan->config);
    for (int i = 0; i < plan->names; i++) {
        char name[32];
        snprintf(name, sizeof name, "work.%d", i);
        work_init(&works[i], &me, planned((size_t)i, ranks->size, parts[i]), name, i % 3 == 0);
        works[i].tensor.request.priority = -i;
    }
    for (int round = 0; round < plan->rounds; round++) {
        for (int i = 0; i < plan->names; i++) work_fill(&works[i]);
        submit_all(works, (size_t)plan->names, &random);
        if (!engine_rank_wait(&me)) break;
        for (int i = 0; i < plan->names; i++) check_work(&works[i]);
    }
    engine_rank_end(&me);
    for (int i = 0; i < plan->names; i++) work_free(&works[i]);
    free(parts);
    free(works);
}

TEST(test_every_number_of_ranks) {
    struct plan plan = {DEFAULT_CONFIG, NAMES, 3};
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) ranks_run(p, plan_main, &plan);
    for (int p = 2; p <= 5; p++) ranks_run_on_window(p, plan_main, &plan);
}

TEST(test_fusion_thresholds) {
    static const size_t BYTES[] = {0, 1, 64, 4096, SIZE_MAX};
    struct plan plan = {DEFAULT_CONFIG, NAMES, 2};
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES; i++) {
        plan.config.options.fusion_bytes = BYTES[i];
        ranks_run(3, plan_main, &plan);
    }
}

/* Allgathers too, whose rows the caches keep. */
TEST(test_cache_evictions) {
    static const size_t CAPACITIES[] = {0, 1, 2, 49, 50};
    struct plan plan = {DEFAULT_CONFIG, 50, 5};
    for (size_t i = 0; i < sizeof CAPACITIES / sizeof *CAPACITIES; i++) {
        plan.config.options.cache_capacity = CAPACITIES[i];
        ranks_run(2, plan_main, &plan);
        ranks_run(4, plan_main, &plan);
    }
}

/* The same name with another shape, dtype or kind in every round, agreed by all. */
ENGINES(changing_main, arg) {
    for (size_t round = 0; round < 60; round++) {
        size_t parts[MOST_RANKS * MOST_RANKS];
        check_one(me, planned(round / 2, me->ranks->size, parts), "same.name", round % 2);
    }
}

TEST(test_changing_tensor) {
    for (int p = 1; p <= 4; p++) ranks_run(p, changing_main, NULL);
}

/* Rows that change on one rank only: the others send the id, this one all of it. */
ENGINES(growing_main, arg) {
    hvd_kind kind = *(hvd_kind *)arg;
    for (size_t round = 0; round < 12; round++) {
        size_t parts[MOST_RANKS * MOST_RANKS];
        int each = kind == HVD_ALLTOALL ? me->ranks->size : 1;
        for (int i = 0; i < me->ranks->size * each; i++) parts[i] = i / each == 1 ? round / 2 : 2;
        struct coll_case c = {.kind = kind, .dtype = HVD_INT32, .n = 5, .parts = parts};
        check_one(me, c, "growing", false);
    }
}

TEST(test_growing_rows) {
    hvd_kind kinds[] = {HVD_ALLGATHER, HVD_ALLTOALL};
    for (int i = 0; i < 2; i++) {
        ranks_run(2, growing_main, &kinds[i]);
        ranks_run(5, growing_main, &kinds[i]);
    }
}

/* Bigger than segments, fused and alone. */
static void big_main(struct ranks *ranks, int rank, void *arg) {
    (void)arg;
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT16, HVD_FLOAT32, HVD_FLOAT16};
    struct engine_config config = DEFAULT_CONFIG;
    config.options.fusion_bytes = 4 << 20;
    struct engine_rank me;
    struct work works[4];
    engine_rank_start(&me, ranks, rank, &config);
    for (int i = 0; i < 4; i++) {
        char name[8] = {'b', (char)('0' + i), 0};
        struct coll_case c = plain_sum(CHECK_SLOW ? 100003 : 400009);
        c.dtype = DTYPES[i];
        work_start(&works[i], &me, c, name, i % 2);
    }
    engine_rank_wait(&me);
    for (int i = 0; i < 4; i++) {
        check_work(&works[i]);
        work_free(&works[i]);
    }
    engine_rank_end(&me);
}

TEST(test_big) {
    ranks_run(1, big_main, NULL);
    ranks_run(3, big_main, NULL);
}
