/* If the links are busy, a tensor with a higher priority overtakes other tensors. */
#include "engine_case.h"

#include "negotiation/wire.h"

enum { BUSY_RANKS = 3, SMALL = 6 };

/* The links of all ranks: while `closed`, no transfer ends. */
struct wire {
    struct transport_ops ops[BUSY_RANKS];
    const struct transport_ops *real[BUSY_RANKS];
    atomic_bool closed;
    atomic_int said; /* number of tensors that ranks have reported to the coordinator */
    /* number of unsuccessful tests of a transfer by rank 0; rank 0 negotiates after each test */
    atomic_int looked;
};

static struct wire wire;

static int gated_test(struct transport *t, struct transfer *x, hvd_error *err) {
    if (!atomic_load(&wire.closed)) return wire.real[t->at.rank]->test(t, x, err);
    if (t->at.rank == 0) atomic_fetch_add(&wire.looked, 1);
    return HVD_OK;
}

/* Counts the tensors that a rank reports to the coordinator. */
static int counting_send(struct transport *t, int to, const void *data, size_t size,
                         hvd_error *err) {
    HVD_TRY(wire.real[t->at.rank]->send(t, to, data, size, err));
    OWN(wire_reader_free) struct wire_reader r;
    struct wire_item item = {.type = WIRE_RUN};
    bool more = true;
    HVD_TRY(wire_open(&r, data, size, err));
    while (wire_next(&r, &item, &more, err) == HVD_OK && more)
        if (item.type == WIRE_REQUEST) atomic_fetch_add(&wire.said, 1);
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

/* Waits until rank 0 waits for data and has handled all reports. */
static void wait_heard(struct ranks *ranks, int tensors) {
    double until = clock_now() + PATIENCE;
    ranks_meet(ranks); /* wait until all ranks have submitted */
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
    f->place = (*f->count)++; /* on the engine's thread */
    work_completed(&f->work, error);
}

ENGINES_BY(busy_main, arg, config.options.bytes_ahead = 1; gate(rank_transport(ranks, rank))) {
    /* two tensors were decided before the last tensor arrived */
    static const int ORDER[SMALL] = {0, 1, 5, 4, 3, 2};
    struct finish of[SMALL];
    int count = 0;
    for (int i = 0; i < SMALL; i++) {
        work_init(&of[i].work, me, plain_sum(5), numbered("layer", i), true);
        of[i].work.tensor.request.priority = i;
        of[i].work.tensor.complete = note_place;
        of[i].work.tensor.arg = &of[i];
        of[i].count = &count;
    }
    for (int i = 0; i < SMALL; i++) {
        OK(work_submit(&of[i].work, ERR));
        if (i < 2) wait_heard(me->ranks, i + 1);
    }
    wait_heard(me->ranks, SMALL);
    atomic_store(&wire.closed, false);
    if (engine_rank_wait(me)) {
        for (int i = 0; i < SMALL; i++) {
            check_work(&of[i].work);
            CHECK_INT(of[ORDER[i]].place, i);
        }
    }
    for (int i = 0; i < SMALL; i++) work_free(&of[i].work);
}

TEST(test_on_busy_links_a_tensor_of_higher_priority_overtakes_others) {
    wire = (struct wire){.closed = true};
    ranks_run(BUSY_RANKS, busy_main, NULL);
}
