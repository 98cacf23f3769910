/* The engine: every rank submits the same tensors, in different orders and from several threads. */
#include "engine_case.h"

enum { NAMES = 40, MOST_THREADS = 3 };

struct plan {
    struct engine_config config;
    int names, rounds;
    size_t longer; /* factor for the tensors' sizes */
};

/* Returns tensor i, equal on every rank. The tensors cover all kinds, dtypes, ops and roots, and
 * sizes from 0 on. */
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

/* The works that one thread of a rank submits. */
struct share {
    struct work *works;
    size_t *order, first, step, n;
};

static void *submit_share(void *arg) {
    struct share *s = arg;
    for (size_t i = s->first; i < s->n; i += s->step) OK(work_submit(&s->works[s->order[i]], ERR));
    return NULL;
}

/* Submits the works in random order from 1 to 3 threads. */
static void submit_all(struct work *works, size_t n, uint64_t *random) {
    size_t order[128], threads = 1 + random_below(random, MOST_THREADS);
    struct share shares[MOST_THREADS];
    random_order(random, order, n);
    for (size_t i = 0; i < n; i++) work_fill(&works[i]);
    for (size_t i = 0; i < threads; i++) shares[i] = (struct share){works, order, i, threads, n};
    threads_run((int)threads, submit_share, shares, sizeof *shares);
}

ENGINES_BY(plan_main, arg, config = ((const struct plan *)arg)->config) {
    const struct plan *plan = arg;
    size_t n = (size_t)plan->names;
    OWNED struct work *works = room(n * sizeof *works);
    OWNED size_t (*parts)[MOST_RANKS * MOST_RANKS] = room(n * sizeof *parts);
    uint64_t random = (uint64_t)(me->rank + 10 * me->ranks->size);
    for (size_t i = 0; i < n; i++) {
        struct coll_case c = planned(i, me->ranks->size, parts[i]);
        c.n *= plan->longer;
        work_init(&works[i], me, c, numbered("work", (int)i), i % 3 == 0);
        works[i].tensor.request.priority = -(int)i;
    }
    for (int round = 0; round < plan->rounds; round++) {
        submit_all(works, n, &random);
        works_check(me, works, n);
    }
    works_free(works, n);
}

TEST(test_tensors_in_any_order_give_the_serial_result_on_any_number_of_ranks) {
    struct plan plan = {DEFAULT_CONFIG, NAMES, 3, 1};
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) ranks_run(p, plan_main, &plan);
    for (int p = 2; p <= 5; p = more_ranks(p)) ranks_run_on_window(p, plan_main, &plan);
}

TEST(test_every_fusion_threshold_gives_the_serial_result) {
    static const size_t BYTES[] = {0, 1, 64, 4096, SIZE_MAX};
    struct plan plan = {DEFAULT_CONFIG, NAMES, 2, 1};
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES; i++) {
        plan.config.options.fusion_bytes = BYTES[i];
        ranks_run(3, plan_main, &plan);
    }
}

/* Caches also keep the rows of allgathers. */
TEST(test_a_small_cache_gives_the_serial_result) {
    static const size_t CAPACITIES[] = {0, 1, 2, 49, 50};
    struct plan plan = {DEFAULT_CONFIG, 50, 5, 1};
    for (size_t i = 0; i < sizeof CAPACITIES / sizeof *CAPACITIES; i++) {
        plan.config.options.cache_capacity = CAPACITIES[i];
        ranks_run(2, plan_main, &plan);
        if (!CHECK_SLOW) ranks_run(4, plan_main, &plan);
    }
}

/* In every round all ranks use the same name with another shape, dtype or kind. */
ENGINES_TEST(test_a_tensor_may_change_in_every_round, ranks_run, 1, 4) {
    for (size_t round = 0; round < 60; round++) {
        size_t parts[MOST_RANKS * MOST_RANKS];
        check_one(me, planned(round / 2, me->ranks->size, parts), "same.name", round % 2);
    }
}

/* Tensors longer than segments: fused, alone and in pieces; cached from the second round on. */
TEST(test_tensors_longer_than_segments_give_the_serial_result) {
    static const size_t AHEAD[] = {AHEAD_UNLIMITED, 1, 300000, AHEAD_MEASURED};
    struct plan plan = {DEFAULT_CONFIG, 14, 2, CHECK_SLOW ? 101 : 401};
    plan.config.options.fusion_bytes = 4 << 20;
    for (int p = 1; p <= 4; p = more_ranks(p)) {
        for (size_t i = 0; i < sizeof AHEAD / sizeof *AHEAD; i++) {
            plan.config.options.bytes_ahead = AHEAD[i];
            ranks_run(p, plan_main, &plan);
            ranks_run_on_window(p, plan_main, &plan);
        }
    }
}
