/* A rank with an engine, for tests. */
#ifndef HVDLITE_ENGINE_CASE_H
#define HVDLITE_ENGINE_CASE_H

#include "coll_data.h"

#include "base/os.h"
#include "engine/engine.h"
#include "engine/p2p.h"

static const double PATIENCE = 300; /* seconds; an engine that takes longer has hung */

/* A rank with its own engine. */
struct engine_rank {
    struct ranks *ranks;
    int rank;
    struct engine *engine;
    struct mutex mutex; /* guards `running` and the results of all works */
    int running;
};

/* A tensor on one rank. */
struct work {
    struct coll_case what;
    struct tensor tensor;
    struct engine_rank *owner;
    unsigned char *in, *out; /* input and output; the same memory if the work is in place */
    size_t in_bytes, out_bytes;
    int64_t splits[MOST_RANKS];
    hvd_error error; /* result of the work */
    int completions;
};

static const struct engine_config DEFAULT_CONFIG = {
    .options = {.fusion_bytes = 1 << 20, .cache_capacity = 100}, .log = {.level = LOG_OFF}};

static inline void engine_rank_start(struct engine_rank *me, struct ranks *ranks, int rank,
                                     const struct engine_config *config) {
    *me = (struct engine_rank){.ranks = ranks, .rank = rank};
    mutex_init(&me->mutex);
    REQUIRE(engine_start(&me->engine, rank_transport(ranks, rank), config, ERR) == HVD_OK);
}

/* Stops the engine without leaving the job. */
static inline void engine_rank_stop(struct engine_rank *me) {
    engine_stop(me->engine);
    me->engine = NULL;
    mutex_destroy(&me->mutex);
}

/* Leaves, waits until all ranks have left, and stops the engine. Does nothing if the engine has
 * been stopped already. */
static inline void engine_rank_end(struct engine_rank *me) {
    if (!me->engine) return;
    engine_leave(me->engine, "done");
    CHECK_CASE(engine_ended(me->engine, PATIENCE), "rank %d of %d", me->rank, me->ranks->size);
    engine_rank_stop(me);
    CHECK_INT(me->running, 0);
}

/* Defines what a rank does while its engine runs. Statements after `arg` may change `config`, which
 * starts as DEFAULT_CONFIG. */
#define ENGINES_BY(name, arg, ...)                                                                 \
    static void name##_in(struct engine_rank *me, void *arg);                                      \
    static void name(struct ranks *ranks, int rank, void *arg) {                                   \
        struct engine_rank me;                                                                     \
        struct engine_config config = DEFAULT_CONFIG;                                              \
        __VA_ARGS__;                                                                               \
        engine_rank_start(&me, ranks, rank, &config);                                              \
        name##_in(&me, arg);                                                                       \
        engine_rank_end(&me);                                                                      \
    }                                                                                              \
    static void name##_in(struct engine_rank *me, void *arg)
#define ENGINES(name, arg) ENGINES_BY(name, arg, )

/* Defines a test by what each rank does with its engine. `run` (ranks_run or ranks_run_on_window)
 * runs the test with `least` to `most` ranks. */
#define ENGINES_TEST(name, run, least, most)                                                       \
    static rank_main name##_main;                                                                  \
    TEST(name) {                                                                                   \
        for (int p = least; p <= most; p = more_ranks(p)) run(p, name##_main, NULL);               \
    }                                                                                              \
    ENGINES(name##_main, arg)

static inline void work_completed(void *arg, const hvd_error *error) {
    struct work *w = arg;
    mutex_lock(&w->owner->mutex);
    w->completions++;
    w->error = error ? *error : (hvd_error){0};
    w->owner->running--;
    mutex_notify(&w->owner->mutex);
    mutex_unlock(&w->owner->mutex);
}

static inline void work_describe(struct work *w, const char *name) {
    const struct coll_case *c = &w->what;
    struct request *r = &w->tensor.request;
    snprintf(r->name, sizeof r->name, "%s", name);
    r->kind = (int32_t)c->kind;
    r->dtype = c->dtype;
    r->op = c->how.op;
    r->prescale = c->how.prescale;
    r->postscale = c->how.postscale;
    r->root = c->root;
    r->ndim = 1;
    r->dims[0] = (int64_t)c->n;
    if (!has_parts(c->kind)) return;
    struct coll_case bytes = *c; /* with rows of one byte */
    bytes.n = 1;
    bytes.dtype = HVD_UINT8;
    struct case_parts rows = parts_of(&bytes, w->owner->ranks->size, w->owner->rank);
    r->ndim = 2;
    r->dims[0] = (int64_t)rows.in_bytes;
    r->dims[1] = (int64_t)c->n;
    w->tensor.out_rows = (int64_t)rows.out_bytes;
}

static inline void work_fill(struct work *w) {
    case_fill(&w->what, w->owner->ranks->size, w->owner->rank, w->in);
    if (w->in != w->out) memset(w->out, 0x5a, w->out_bytes);
    w->completions = 0;
    w->error = (hvd_error){0};
}

/* Gives an alltoall its splits. */
static inline void work_split(struct work *w) {
    int ranks = w->owner->ranks->size;
    for (int to = 0; to < ranks; to++)
        w->splits[to] = (int64_t)w->what.parts[w->owner->rank * ranks + to];
    w->tensor.splits = w->splits;
    w->tensor.nsplits = (size_t)ranks;
    w->tensor.request.uneven = true;
}

/* Makes a work (tensor, memory, expected result), in place if `in_place` and the kind allow it. */
static inline void work_init(struct work *w, struct engine_rank *me, struct coll_case c,
                             const char *name, bool in_place) {
    *w = (struct work){.what = c, .owner = me};
    work_describe(w, name);
    struct case_parts parts = parts_of(&c, me->ranks->size, me->rank);
    w->in_bytes = parts.in_bytes;
    w->out_bytes = parts.out_bytes;
    if (c.kind == HVD_ALLTOALL) work_split(w);
    w->in = room(w->in_bytes);
    w->out = in_place && !has_parts(c.kind) ? w->in : room(w->out_bytes);
    w->tensor.in = w->in;
    w->tensor.out = w->out;
    w->tensor.complete = work_completed;
    w->tensor.arg = w;
    work_fill(w);
}

static inline void work_free(struct work *w) {
    if (w->out != w->in) free(w->out);
    free(w->in);
}

static inline int work_submit(struct work *w, hvd_error *err) {
    struct engine_rank *me = w->owner;
    mutex_lock(&me->mutex);
    me->running++;
    mutex_unlock(&me->mutex);
    const struct request *r = &w->tensor.request;
    int code = p2p_is(r) ? p2p_check(r, &rank_transport(me->ranks, me->rank)->at, err)
                         : request_check(r, me->ranks->size, err);
    if (!code) code = engine_submit(me->engine, &w->tensor, err);
    if (!code) return HVD_OK;
    mutex_lock(&me->mutex);
    me->running--;
    mutex_unlock(&me->mutex);
    return code;
}

static inline void work_start(struct work *w, struct engine_rank *me, struct coll_case c,
                              const char *name, bool in_place) {
    work_init(w, me, c, name, in_place);
    OK(work_submit(w, ERR));
}

/* Waits until all submitted works have completed. */
static inline bool engine_rank_wait(struct engine_rank *me) {
    double until = clock_now() + PATIENCE;
    mutex_lock(&me->mutex);
    while (me->running > 0 && clock_now() < until) mutex_wait(&me->mutex, 1);
    int running = me->running;
    mutex_unlock(&me->mutex);
    return CHECK_INT(running, 0);
}

static inline bool work_right(const struct work *w) {
    return case_right(&w->what, w->owner->ranks->size, w->owner->rank, false, w->out);
}

/* Returns true if the input is unchanged, or if it is also the output. */
static inline bool work_kept(const struct work *w) {
    OWNED unsigned char *before = room(w->in_bytes);
    case_fill(&w->what, w->owner->ranks->size, w->owner->rank, before);
    return w->in == w->out || !memcmp(w->in, before, w->in_bytes);
}

static inline void check_work(const struct work *w) {
    char text[300];
    case_text(&w->what, w->owner->ranks->size, text, sizeof text);
    CHECK_CASE(w->completions == 1, "%s '%s': %d completions", text, w->tensor.request.name,
               w->completions);
    if (CHECK_CASE(w->error.code == HVD_OK, "%s: %s", text, w->error.text))
        CHECK_CASE(work_right(w) && work_kept(w), "%s '%s' on rank %d", text,
                   w->tensor.request.name, w->owner->rank);
}

/* Fills n works and submits them in the order `order`; if `order` is NULL, in the order of the
 * array. */
static inline void works_submit(struct work *works, size_t n, const size_t *order) {
    for (size_t i = 0; i < n; i++) work_fill(&works[i]);
    for (size_t i = 0; i < n; i++) OK(work_submit(&works[order ? order[i] : i], ERR));
}

static inline void works_check(struct engine_rank *me, const struct work *works, size_t n) {
    if (engine_rank_wait(me))
        for (size_t i = 0; i < n; i++) check_work(&works[i]);
}

static inline void works_free(struct work *works, size_t n) {
    for (size_t i = 0; i < n; i++) work_free(&works[i]);
}

/* Returns a sum of n float32, which most tests use. */
static inline struct coll_case plain_sum(size_t n) {
    return (struct coll_case){
        .kind = HVD_ALLREDUCE, .dtype = HVD_FLOAT32, .n = n, .how = {HVD_SUM, 1, 1}};
}

/* Submits one tensor and checks it. */
static inline void check_one(struct engine_rank *me, struct coll_case c, const char *name,
                             bool in_place) {
    OWN(work_free) struct work w;
    work_start(&w, me, c, name, in_place);
    if (engine_rank_wait(me)) check_work(&w);
}

/* Checks with an allreduce that the engine works. */
static inline void check_in_order(struct engine_rank *me, const char *name) {
    check_one(me, plain_sum(17), name, true);
}

#endif
