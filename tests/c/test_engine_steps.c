/* In each run a rank dies at a different step. All other ranks' waits must end with an error that
 * names the dead rank. Delayed messages that overtake each other must not change a result. */
#include "engine_case.h"

#include "random.h"

enum { ROUNDS = 3, WORKS = 5 };

/* ---- the program of every rank ---- */

static void describe(struct coll_case *works, const size_t *parts) {
    works[0] = plain_sum(3);
    works[1] = plain_sum(30011);
    works[2] = (struct coll_case){.kind = HVD_BROADCAST, .dtype = HVD_INT32, .n = 20, .root = 1};
    works[3] =
        (struct coll_case){.kind = HVD_ALLGATHER, .dtype = HVD_FLOAT64, .n = 3, .parts = parts};
    works[4] = plain_sum(700);
}

/* Submits everything in each round. In the first round the tensors are new to the coordinator,
 * later they are cached. Ends at the first error. */
static void work_through(struct engine_rank *me, struct work *works, hvd_error *err) {
    for (int round = 0; round < ROUNDS && !err->code; round++) {
        int submitted = 0;
        for (int i = 0; i < WORKS; i++) work_fill(&works[i]);
        while (submitted < WORKS && !work_submit(&works[submitted], err)) submitted++;
        engine_rank_wait(me);
        for (int i = 0; i < submitted; i++) {
            CHECK_INT(works[i].completions, 1);
            if (works[i].error.code)
                *err = works[i].error;
            else
                CHECK(work_right(&works[i]));
        }
    }
}

static void run_program(struct engine_rank *me, hvd_error *err) {
    static const size_t PARTS[MOST_RANKS] = {2, 0, 5, 1};
    struct coll_case cases[WORKS];
    struct work works[WORKS];
    describe(cases, PARTS);
    for (int i = 0; i < WORKS; i++) {
        char name[] = {(char)('a' + i), 0};
        work_init(&works[i], me, cases[i], name, false);
    }
    work_through(me, works, err);
    if (err->code) { /* later submissions fail immediately, with the same cause */
        CHECK(work_submit(&works[0], ERR) != HVD_OK);
        CHECK_HAS(err->text, ERR->text);
    }
    for (int i = 0; i < WORKS; i++) work_free(&works[i]);
}

/* ---- death ---- */

/* A rank that dies after `left` more steps; a step sends or receives. While the job runs, only the
 * thread of its engine uses this struct. */
static struct mortal {
    const struct transport_ops *real;
    struct transport_ops ops;
    struct ranks *ranks;
    int rank, left;
    bool late, dead;
} mortal;

/* Counts a step. When the rank dies, the transports note the death immediately, or later, as with a
 * pidfd. */
static int step(hvd_error *err) {
    if (mortal.left-- == 0) {
        mortal.dead = true;
        if (mortal.late) clock_nap(1e-3);
        for (int r = 0; r < mortal.ranks->size; r++)
            transport_note_death(rank_transport(mortal.ranks, r), mortal.rank, FATE_DIED);
    }
    return mortal.dead ? error_set(err, HVD_TRANSPORT, "the test has killed rank %d", mortal.rank)
                       : HVD_OK;
}

static int mortal_isend(struct transport *t, const void *data, size_t bytes, int to,
                        struct transfer *x, hvd_error *err) {
    HVD_TRY(step(err));
    return mortal.real->isend(t, data, bytes, to, x, err);
}

static int mortal_test(struct transport *t, struct transfer *x, hvd_error *err) {
    HVD_TRY(mortal.real->test(t, x, err));
    return x->active ? HVD_OK : step(err);
}

static int mortal_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    HVD_TRY(step(err));
    return mortal.real->send(t, to, data, size, err);
}

static int mortal_receive(struct transport *t, struct message *m, hvd_error *err) {
    HVD_TRY(mortal.real->receive(t, m, err));
    int code = m->data ? step(err) : HVD_OK;
    if (code) free(m->data);
    return code;
}

static void make_mortal(struct ranks *ranks, int rank, int steps) {
    struct transport *t = rank_transport(ranks, rank);
    mortal = (struct mortal){.real = t->ops,
                             .ops = *t->ops,
                             .ranks = ranks,
                             .rank = rank,
                             .left = steps,
                             .late = steps % 2};
    mortal.ops.isend = mortal_isend;
    mortal.ops.test = mortal_test;
    mortal.ops.send = mortal_send;
    mortal.ops.receive = mortal_receive;
    t->ops = &mortal.ops;
}

struct death {
    int rank, steps;
    bool came; /* result: data arrived before the rank ended */
};

static void die_later(struct ranks *ranks, int rank, const struct death *d) {
    if (rank == d->rank) make_mortal(ranks, rank, d->steps);
    ranks_meet(ranks);
}

ENGINES_BY(death_main, arg, die_later(ranks, rank, arg)) {
    struct death *d = arg;
    hvd_error err = {0};
    char name[32];
    run_program(me, &err);
    snprintf(name, sizeof name, "rank %d (process", d->rank);
    /* the text does not depend on what this rank was running */
    if (me->rank != d->rank && err.code)
        CHECK_CASE(err.code == HVD_RANK_DEAD && strstr(err.text, name) == err.text &&
                       !strstr(err.text, "running") && err.nblamed == 1 && err.blamed[0] == d->rank,
                   "rank %d's death at step %d, on rank %d: %s", d->rank, d->steps, me->rank,
                   err.text);
    engine_leave(me->engine, "done");
    CHECK_CASE(engine_ended(me->engine, PATIENCE), "rank %d's death at step %d, on rank %d",
               d->rank, d->steps, me->rank);
    engine_rank_stop(me);
    if (me->rank == d->rank) d->came = mortal.dead;
}

TEST(test_a_rank_that_dies_at_any_step_is_named_by_all_others) {
    static const struct {
        int ranks, per_host;
        bool windows;
    } JOBS[] = {{2, 0, false}, {3, 0, true}, {4, 2, true}, {4, 2, false}};
    const int stride = CHECK_SLOW ? 11 : 1;
    for (size_t i = 0; i < sizeof JOBS / sizeof *JOBS; i++) {
        for (int rank = 0; rank < JOBS[i].ranks; rank++) {
            struct death d = {.rank = rank, .came = true};
            for (; d.came; d.steps += stride)
                ranks_run_hub(JOBS[i].ranks,
                              hub_of(JOBS[i].ranks, JOBS[i].per_host, JOBS[i].windows), death_main,
                              &d);
            CHECK_CASE(d.steps > stride, "rank %d of %d has not died", rank, JOBS[i].ranks);
        }
    }
}

/* ---- delays ---- */

enum { HELD_MOST = 256 };

/* Messages that have arrived and are held back. Messages of one sender stay in order. */
struct slow {
    const struct transport_ops *real;
    struct transport_ops ops;
    struct message held[HELD_MOST];
    int n;
    uint64_t random;
};

static struct slow slows[MOST_RANKS];

static bool lets_through(struct slow *s) { return random_below(&s->random, 4) == 0; }

/* Returns the oldest message of a random sender. */
static struct message take_held(struct slow *s) {
    int i = 0, from = s->held[random_below(&s->random, (size_t)s->n)].from;
    while (s->held[i].from != from) i++;
    struct message m = s->held[i];
    s->n--;
    memmove(s->held + i, s->held + i + 1, (size_t)(s->n - i) * sizeof *s->held);
    return m;
}

static int slow_receive(struct transport *t, struct message *out, hvd_error *err) {
    struct slow *s = &slows[t->at.rank];
    while (s->n < HELD_MOST) {
        struct message m = {0};
        HVD_TRY(s->real->receive(t, &m, err));
        if (!m.data) break;
        s->held[s->n++] = m;
    }
    if (s->n && lets_through(s)) *out = take_held(s);
    return HVD_OK;
}

static int slow_test(struct transport *t, struct transfer *x, hvd_error *err) {
    struct slow *s = &slows[t->at.rank];
    return lets_through(s) ? s->real->test(t, x, err) : HVD_OK;
}

/* Does not sleep while messages are held back. */
static void slow_sleep(struct transport *t, unsigned ticket, double seconds) {
    struct slow *s = &slows[t->at.rank];
    if (!s->n) s->real->sleep(t, ticket, seconds);
}

static void make_slow(struct ranks *ranks, int rank, uint64_t seed) {
    struct transport *t = rank_transport(ranks, rank);
    struct slow *s = &slows[rank];
    *s = (struct slow){.real = t->ops, .ops = *t->ops, .random = mixed(seed + (uint64_t)rank)};
    s->ops.receive = slow_receive;
    s->ops.test = slow_test;
    s->ops.sleep = slow_sleep;
    t->ops = &s->ops;
}

ENGINES_BY(slow_main, arg, make_slow(ranks, rank, *(const uint64_t *)arg); ranks_meet(ranks)) {
    hvd_error err = {0};
    run_program(me, &err);
    CHECK_INT(err.code, HVD_OK);
}

TEST(test_delayed_and_reordered_messages_change_no_result) {
    for (uint64_t seed = 0; seed < (CHECK_SLOW ? 6 : 60); seed++) {
        int ranks = 2 + (int)seed % 4;
        ranks_run_hub(ranks, hub_of(ranks, seed % 3 ? 2 : 0, seed % 2), slow_main, &seed);
    }
}
