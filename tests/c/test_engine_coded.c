/* Encoded tensors in the engine: alone, fused, over several steps, together with other tensors; and
 * refused ones. */
#include "check.h"

#include "codec_case.h"
#include "engine_case.h"

enum { TENSORS = 12 };

/* An encoded tensor on one rank. */
struct coded_work {
    struct work work;
    size_t n;
    float *in, *out, *residual;
};

static size_t size_of(int i) { return (size_t)(i * i * 37); }

static void coded_init(struct coded_work *w, struct engine_rank *me, struct codec c, size_t n,
                       const char *name) {
    struct coll_case average = plain_sum(n);
    average.how.op = HVD_AVERAGE;
    work_init(&w->work, me, average, name, false);
    w->n = n;
    w->in = (float *)(void *)w->work.in;
    w->out = (float *)(void *)w->work.out;
    w->residual = room(n * sizeof *w->residual);
    coded_gradient(me->rank, n, w->in);
    w->work.tensor.request.codec = c;
    w->work.tensor.residual = w->residual;
}

static void coded_free(struct coded_work *w) {
    work_free(&w->work);
    free(w->residual);
}

static void check_coded(const struct coded_work *w) {
    const struct request *r = &w->work.tensor.request;
    int p = w->work.owner->ranks->size;
    OWNED float *expected = coded_sum(r->codec, p, -1, w->n, 1.0 / p);
    CHECK_INT(w->work.completions, 1);
    CHECK_CASE(w->work.error.code == HVD_OK, "'%s': %s", r->name, w->work.error.text);
    CHECK_CASE(coded_same(w->out, expected, w->n), "'%s', %d ranks, %zu values", r->name, p, w->n);
}

static void submit_all(struct ranks *ranks, int rank, void *fusion) {
    struct engine_config config = DEFAULT_CONFIG;
    struct stats stats = {0};
    config.options.fusion_bytes = *(size_t *)fusion;
    config.stats = &stats;
    struct engine_rank me;
    struct coded_work works[CODED_CASES_N][TENSORS];
    engine_rank_start(&me, ranks, rank, &config);
    for (int c = 0; c < CODED_CASES_N; c++) {
        for (int i = 0; i < TENSORS; i++) {
            char name[32];
            snprintf(name, sizeof name, "%s.%d", codec_name(CODED_CASES[c].kind), i);
            coded_init(&works[c][i], &me, CODED_CASES[c], size_of(i), name);
            OK(work_submit(&works[c][i].work, ERR));
        }
        check_in_order(&me, "plain");
    }
    if (engine_rank_wait(&me))
        for (int c = 0; c < CODED_CASES_N; c++)
            for (int i = 0; i < TENSORS; i++) check_coded(&works[c][i]);
    CHECK_INT(stats.tensors, CODED_CASES_N * (TENSORS + 1));
    CHECK(stats.batches <= stats.tensors && stats.batches > 0);
    for (int c = 0; c < CODED_CASES_N; c++)
        for (int i = 0; i < TENSORS; i++) coded_free(&works[c][i]);
    engine_rank_end(&me);
}

TEST(test_coded_tensors_give_the_expected_sum_with_and_without_fusion) {
    size_t none = 0, some = 40000;
    for (int size = 1; size <= 3; size++) {
        ranks_run(size, submit_all, &none);
        ranks_run(size, submit_all, &some);
        ranks_run_on_window(size, submit_all, &some);
    }
}

/* The residual of a step is added in the next step. */
ENGINES_TEST(test_the_residual_of_a_step_goes_into_the_next, ranks_run, 3, 3) {
    OWN(coded_free) struct coded_work w;
    coded_init(&w, me, (struct codec){HVD_CODEC_2BIT, 1}, 3, "w");
    memcpy(w.in, (float[]){0.75f, -0.25f, 3}, 3 * sizeof *w.in);
    for (int step = 1; step <= 2; step++) {
        OK(work_submit(&w.work, ERR));
        engine_rank_wait(me);
        CHECK_NEAR((double)w.out[0], step - 1, 0);
        CHECK_NEAR((double)w.out[1], 0, 0);
        CHECK_NEAR((double)w.out[2], 1, 0);
    }
    CHECK_NEAR((double)w.residual[0], 0.5, 0);
    CHECK_NEAR((double)w.residual[2], 4, 0);
}

/* The engine must report the algorithm of the encoded tensor, not that of one of its steps or of an
 * earlier tensor. */
ENGINES(names_algorithms, shared) {
    static const struct {
        struct codec codec;
        size_t n;
        const char *algorithm;
    } CASES[] = {{{HVD_CODEC_FLOAT16, 0}, 10, "cast allreduce"},
                 {{HVD_CODEC_2BIT, 0.5}, 10, "gathered allreduce"},
                 {{HVD_CODEC_2BIT, 0.5}, 100000, "scattered allreduce"},
                 {{HVD_CODEC_TOPK, 0.1}, 100000, "gathered allreduce"}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        OWN(coded_free) struct coded_work w;
        check_in_order(me, "plain");
        coded_init(&w, me, CASES[i].codec, CASES[i].n, "coded");
        OK(work_submit(&w.work, ERR));
        if (engine_rank_wait(me)) CHECK_TEXT(engine_algorithm(me->engine), CASES[i].algorithm);
    }
}

TEST(test_the_reported_algorithm_is_the_one_that_ran) {
    ranks_run_on_window(3, names_algorithms, NULL);
}

ENGINES_TEST(test_codecs_refuse_wrong_parameters_and_missing_residuals, ranks_run, 2, 2) {
    struct coded_work w;
    coded_init(&w, me, (struct codec){HVD_CODEC_2BIT, 0.5}, 50, "w");
    w.work.tensor.residual = NULL;
    FAILS(work_submit(&w.work, ERR), HVD_INVALID);
    CHECK_HAS(ERR->text, "needs a residual");
    w.work.tensor.residual = w.residual;
    w.work.tensor.request.dtype = HVD_FLOAT64;
    FAILS(work_submit(&w.work, ERR), HVD_UNSUPPORTED);
    CHECK_HAS(ERR->text, "compression 2bit is for an allreduce of float32, not for allreduce of "
                         "float64");
    check_in_order(me, "before");
    OWN(coded_free) struct coded_work first;
    coded_init(&first, me, (struct codec){HVD_CODEC_2BIT, 0.5}, w.n, "w");
    w.work.tensor.request.dtype = HVD_FLOAT32;
    engine_cork(me->engine, true);
    OK(work_submit(&first.work, ERR));
    FAILS(work_submit(&w.work, ERR), HVD_DUPLICATE);
    engine_cork(me->engine, false);
    engine_rank_wait(me);
    check_coded(&first);
    engine_leave(me->engine, "early");
    FAILS(work_submit(&w.work, ERR), HVD_NOT_INITIALIZED);
    for (size_t i = 0; i < w.n; i++) CHECK(w.residual[i] == 0);
    coded_free(&w);
}
