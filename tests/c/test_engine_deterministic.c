/* Tensors are submitted all together, one by one, or in any order. Sums have the same bits in every
 * run if HVDLITE_DETERMINISTIC is set; in a window, always. */
#include "engine_case.h"

enum { TENSORS = 8, FEW_FLOATS = 16 * 1024 / 4 };

static const size_t ELEMENTS[TENSORS] = {
    1, 100, 3000, FEW_FLOATS, FEW_FLOATS + 1, 40009, CHECK_SLOW ? 100003 : 1500007, 50};

/* The parameters of a run, and its results on rank 0. */
struct run {
    bool deterministic, one_by_one;
    size_t ahead;
    /* seed for the order of submissions; ranks have different orders unless one_by_one */
    uint64_t seed;
    unsigned char *result[TENSORS];
};

static struct coll_case case_of(int i) {
    struct coll_case c = plain_sum(ELEMENTS[i]);
    if (i % 4 == 1) c.how = (struct scaling){HVD_AVERAGE, 0.3, 3};
    if (i % 4 == 2) c.dtype = HVD_FLOAT16;
    return c;
}

/* Fills the work with numbers whose sum depends on the order. */
static void fill_random(struct work *w, uint64_t seed) {
    for (size_t i = 0; i < w->what.n; i++) {
        float value = (float)random_unit(&seed);
        uint16_t half = (uint16_t)(random_next(&seed) & 0xbfff); /* a float16 below 2 */
        if (w->what.dtype == HVD_FLOAT16)
            memcpy(w->in + 2 * i, &half, 2);
        else
            memcpy(w->in + 4 * i, &value, 4);
    }
}

static void submit_all(struct engine_rank *me, struct work *works, const struct run *run) {
    size_t order[TENSORS];
    uint64_t random = run->seed + (run->one_by_one ? 0 : (uint64_t)me->rank);
    random_order(&random, order, TENSORS);
    if (!run->one_by_one) engine_cork(me->engine, true);
    for (int i = 0; i < TENSORS; i++) {
        OK(work_submit(&works[order[i]], ERR));
        if (run->one_by_one) engine_rank_wait(me);
    }
    if (!run->one_by_one) engine_cork(me->engine, false);
    engine_rank_wait(me);
}

ENGINES_BY(run_main, arg, config.options.fusion_bytes = SIZE_MAX,
           config.options.bytes_ahead = ((struct run *)arg)->ahead,
           config.options.deterministic = ((struct run *)arg)->deterministic) {
    struct run *run = arg;
    struct work works[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        work_init(&works[i], me, case_of(i), numbered("sum", i), i % 2);
        fill_random(&works[i], (uint64_t)(100 * i + me->rank));
    }
    submit_all(me, works, run);
    for (int i = 0; i < TENSORS; i++) {
        CHECK_INT(works[i].error.code, HVD_OK);
        if (me->rank == 0) {
            run->result[i] = room(works[i].out_bytes);
            memcpy(run->result[i], works[i].out, works[i].out_bytes);
        }
        work_free(&works[i]);
    }
}

static int compare(struct run *a, struct run *b) {
    int differ = 0;
    for (int i = 0; i < TENSORS; i++) {
        size_t bytes = ELEMENTS[i] * dtype_size(case_of(i).dtype);
        differ += memcmp(a->result[i], b->result[i], bytes) != 0;
        free(b->result[i]);
    }
    return differ;
}

static void free_run(struct run *run) {
    for (int i = 0; i < TENSORS; i++) free(run->result[i]);
}

/* Returns how many tensors have different bits in a later run than in the first run. */
static int differing(int size, int per_host, bool share, bool deterministic) {
    struct run first = {.deterministic = deterministic},
               others[] = {{.deterministic = deterministic, .one_by_one = true, .seed = 3},
                           {.deterministic = deterministic, .ahead = 1, .seed = 5},
                           {.deterministic = deterministic, .ahead = AHEAD_MEASURED, .seed = 7}};
    int differ = 0;
    ranks_run_hub(size, hub_of(size, per_host, share), run_main, &first);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        ranks_run_hub(size, hub_of(size, per_host, share), run_main, &others[i]);
        differ += compare(&first, &others[i]);
    }
    free_run(&first);
    return differ;
}

TEST(test_the_deterministic_option_gives_equal_bits_in_every_run) {
    CHECK_INT(differing(3, 1, false, true), 0);
    CHECK_INT(differing(4, 1, false, true), 0);
    CHECK_INT(differing(6, 2, true, true), 0); /* hosts of two ranks */
    CHECK_INT(differing(5, 2, true, true), 0); /* uneven hosts */
}

TEST(test_a_window_always_gives_equal_bits) {
    CHECK_INT(differing(3, 0, true, true), 0);
    CHECK_INT(differing(3, 0, true, false), 0);
}

/* If bits never differed, the tests that compare the bits of runs would prove nothing. */
TEST(test_without_the_deterministic_option_bits_differ_between_runs) {
    CHECK(differing(3, 1, false, false) > 0);
    /* three hosts, because two summands have only one order */
    CHECK(differing(6, 2, true, false) > 0);
}
