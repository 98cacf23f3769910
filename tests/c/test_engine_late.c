/* Tensors in pieces give the same results; on a busy wire the urgent tensor overtakes. */
#include "engine_case.h"

#include "negotiation/wire.h"

#include <stdatomic.h>

/* ---- pieces ---- */

enum { LARGE = 8 };

static struct coll_case large_case(int i, int ranks) {
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT16, HVD_INT8, HVD_FLOAT64};
    struct coll_case c = plain_sum((size_t)(30011 * (i + 1)));
    c.dtype = DTYPES[i % 4];
    if (i % 3 == 1) c.how = (struct scaling){HVD_AVERAGE, 0.5, 4};
    if (i % 3 == 2) c.kind = HVD_BROADCAST;
    c.root = i % ranks;
    return c;
}

/* Each round in another order on every rank; the later ones by the cache. */
static void pieces_main(struct ranks *ranks, int rank, void *arg) {
    struct engine_rank me;
    struct work works[LARGE];
    struct engine_config config = DEFAULT_CONFIG;
    uint64_t random = (uint64_t)rank;
    config.options.bytes_ahead = *(const size_t *)arg;
    engine_rank_start(&me, ranks, rank, &config);
    for (int i = 0; i < LARGE; i++) {
        char name[32];
        snprintf(name, sizeof name, "large.%d", i);
        work_init(&works[i], &me, large_case(i, ranks->size), name, i % 2);
        works[i].tensor.request.priority = i % 3;
    }
    for (int round = 0; round < 3; round++) {
        size_t order[LARGE];
        random_order(&random, order, LARGE);
        for (int i = 0; i < LARGE; i++) work_fill(&works[i]);
        for (int i = 0; i < LARGE; i++) OK(work_submit(&works[order[i]], ERR));
        if (engine_rank_wait(&me))
            for (int i = 0; i < LARGE; i++) check_work(&works[i]);
    }
    engine_rank_end(&me);
    for (int i = 0; i < LARGE; i++) work_free(&works[i]);
}

TEST(test_pieces) {
    static const size_t AHEAD[] = {1, 300000, AHEAD_MEASURED};
    for (int p = 1; p <= 4; p += 1 + CHECK_SLOW) {
        for (size_t i = 0; i < sizeof AHEAD / sizeof *AHEAD; i++) {
            ranks_run(p, pieces_main, (void *)&AHEAD[i]);
            ranks_run_on_window(p, pieces_main, (void *)&AHEAD[i]);
        }
    }
}

/* ---- a busy wire ---- */

enum { BUSY_RANKS = 3, SMALL = 6 };

/* The links of all ranks: no transfer ends while `closed`. */
struct wire {
    struct transport_ops ops[BUSY_RANKS];
    const struct transport_ops *real[BUSY_RANKS];
    atomic_bool closed;
    atomic_int said;   /* tensors of which the coordinator has a message */
    atomic_int looked; /* how often rank 0 looked at a transfer in vain; it negotiates after each */
};

static struct wire wire;

static int gated_test(struct transport *t, struct transfer *x, hvd_error *err) {
    if (!atomic_load(&wire.closed)) return wire.real[t->at.rank]->test(t, x, err);
    if (t->at.rank == 0) atomic_fetch_add(&wire.looked, 1);
    return HVD_OK;
}

/* Counts the tensors that a member tells the coordinator. */
static int counting_send(struct transport *t, int to, const void *data, size_t size,
                         hvd_error *err) {
    HVD_TRY(wire.real[t->at.rank]->send(t, to, data, size, err));
    struct wire_reader r;
    struct wire_item item = {.type = WIRE_RUN};
    bool more = true;
    HVD_TRY(wire_open(&r, data, size, err));
    while (wire_next(&r, &item, &more, err) == HVD_OK && more)
        if (item.type == WIRE_REQUEST) atomic_fetch_add(&wire.said, 1);
    wire_reader_free(&r);
    return HVD_OK;
}

static void gate(struct transport *t) {
    int rank = t->at.rank;
    wire.real[rank] = t->ops;
    wire.ops[rank] = *t->ops;
    wire.ops[rank].test = gated_test;
    wire.ops[rank].send = counting_send;
    t->ops = &wire.ops[rank];
}

/* Until rank 0 waits for data and has negotiated about all that was said. */
static void wait_heard(struct ranks *ranks, int tensors) {
    double until = clock_now() + PATIENCE;
    ranks_meet(ranks); /* all have submitted */
    while (atomic_load(&wire.said) < tensors * (BUSY_RANKS - 1) && clock_now() < until)
        clock_nap(1e-4);
    int looked = atomic_load(&wire.looked);
    while (atomic_load(&wire.looked) < looked + 3 && clock_now() < until) clock_nap(1e-4);
    CHECK(clock_now() < until);
    ranks_meet(ranks);
}

/* The order in which a rank's tensors complete. */
struct finish {
    struct work work;
    int *count, place;
};

static void note_place(void *arg, const hvd_error *error) {
    struct finish *f = arg;
    f->place = (*f->count)++; /* the engine's thread */
    work_completed(&f->work, error);
}

static void busy_main(struct ranks *ranks, int rank, void *arg) {
    static const int ORDER[SMALL] = {0, 1, 5, 4, 3, 2}; /* by then two were decided */
    struct engine_rank me;
    struct finish of[SMALL];
    struct engine_config config = DEFAULT_CONFIG;
    int count = 0;
    (void)arg;
    config.options.bytes_ahead = 1;
    gate(rank_transport(ranks, rank));
    engine_rank_start(&me, ranks, rank, &config);
    for (int i = 0; i < SMALL; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d", i);
        work_init(&of[i].work, &me, plain_sum(5), name, true);
        of[i].work.tensor.request.priority = i;
        of[i].work.tensor.complete = note_place;
        of[i].work.tensor.arg = &of[i];
        of[i].count = &count;
    }
    for (int i = 0; i < SMALL; i++) {
        OK(work_submit(&of[i].work, ERR));
        if (i < 2) wait_heard(ranks, i + 1);
    }
    wait_heard(ranks, SMALL);
    atomic_store(&wire.closed, false);
    if (engine_rank_wait(&me)) {
        for (int i = 0; i < SMALL; i++) {
            check_work(&of[i].work);
            CHECK_INT(of[ORDER[i]].place, i);
        }
    }
    engine_rank_end(&me);
    for (int i = 0; i < SMALL; i++) work_free(&of[i].work);
}

TEST(test_on_a_busy_wire_the_front_layer_overtakes) {
    wire = (struct wire){.closed = true};
    ranks_run(BUSY_RANKS, busy_main, NULL);
}
