/* Memory of transfers and regions: no rank writes to memory that it is sending, or reads data
 * before the data has arrived. */
#include "coll_case.h"

#include "base/os.h"

/* ---- a transport that, like MPI, uses a transfer's memory until the wait for the transfer ---- */

struct posted {
    struct transfer inner;
    const unsigned char *sends; /* the data to send; NULL: a receive */
    unsigned char *copy;
    size_t bytes;
};

static const struct transport_ops *plain_ops; /* shared by all ranks */

static struct posted *post(struct transfer *x, const void *sends, size_t bytes) {
    struct posted *p = calloc(1, sizeof *p);
    REQUIRE(p != NULL);
    *p = (struct posted){*x, sends, room(bytes), bytes};
    x->handle[0] = (uint64_t)(uintptr_t)p;
    return p;
}

static int strict_isend(struct transport *t, const void *data, size_t bytes, int to,
                        struct transfer *x, hvd_error *err) {
    struct posted *p = post(x, data, bytes);
    memcpy(p->copy, data, bytes);
    return plain_ops->isend(t, data, bytes, to, &p->inner, err);
}

static int strict_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                        hvd_error *err) {
    struct posted *p = post(x, NULL, bytes);
    memset(data, 0xff, bytes); /* destroys the old contents */
    return plain_ops->irecv(t, data, bytes, from, &p->inner, err);
}

static int strict_test(struct transport *t, struct transfer *x, hvd_error *err) {
    struct posted *p = (struct posted *)(uintptr_t)x->handle[0];
    if (p->inner.active) HVD_TRY(plain_ops->test(t, &p->inner, err));
    x->active = p->inner.active;
    if (x->active) return HVD_OK;
    if (p->sends)
        CHECK_CASE(memcmp(p->sends, p->copy, p->bytes) == 0,
                   "%zu bytes were written while they were being sent", p->bytes);
    free(p->copy);
    free(p);
    return HVD_OK;
}

static void strict_cases(struct coll_rank *self) {
    static const size_t SIZES[] = {1, 61, 5003};
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT16};
    struct transport *t = rank_transport(self->ranks, self->rank);
    struct transport_ops strict = *t->ops;
    if (!self->rank) plain_ops = t->ops;
    strict.isend = strict_isend;
    strict.irecv = strict_irecv;
    strict.test = strict_test;
    ranks_meet(self->ranks);
    t->ops = &strict;
    for (int i = 0; i < 6; i++)
        check_rows(self, (struct coll_case){.kind = HVD_ALLREDUCE,
                                            .dtype = DTYPES[i % 2],
                                            .n = SIZES[i / 2],
                                            .how = {HVD_SUM, 1, 1}});
    ranks_meet(self->ranks);
    t->ops = plain_ops;
}

TEST(test_no_transfer_uses_the_memory_of_another_unfinished_transfer) {
    static const struct pace PACES[] = {{64, 1}, {256, 4}, {64, 16}, PACE_DEFAULT};
    for (int p = 2; p <= 5; p = more_ranks(p))
        for (size_t i = 0; i < sizeof PACES / sizeof *PACES; i++)
            coll_cases_run_at(p, PACES[i], strict_cases);
}

/* ---- gradients in a region, where one rank is late ---- */

enum { LATE = 1, VALUES = 1000 };

struct late {
    float data[MOST_RANKS][VALUES];
    atomic_bool waited_for; /* true: another rank of the host waits for the late rank */
};

static int note_the_wait(void *late, hvd_error *err) {
    (void)err;
    atomic_store(&((struct late *)late)->waited_for, true);
    return HVD_OK;
}

static void late_main(struct ranks *ranks, int rank, void *arg) {
    struct late *late = arg;
    struct transport *t = rank_transport(ranks, rank);
    char *memory[MOST_RANKS], *own = (char *)late->data[rank];
    for (int i = 0; i < t->layout.host.size; i++)
        memory[i] = (char *)late->data[t->layout.host.ranks[i]];
    OWN(scratch_free) struct scratch scratch = {0}, outer = {0};
    struct coll_tensor tensor = {.in = own, .out = own, .bytes = sizeof late->data[rank]};
    struct coll_args args = allreduce_of(&tensor, 1, HVD_FLOAT32, HVD_SUM, &scratch);
    args.data = own;
    args.memory = memory;
    args.outer = &outer;
    CHECK(coll_choose(&t->all, &args)->in_tensors);
    if (rank == 0) t->patience.meanwhile = note_the_wait;
    t->patience.arg = late;
    while (rank == LATE && !atomic_load(&late->waited_for)) clock_yield();
    for (int i = 0; i < VALUES; i++) late->data[rank][i] = (float)(rank + 1);
    OK(coll_run(&t->all, &args, ERR));
    for (int i = 0; i < VALUES; i++)
        CHECK_NEAR((double)late->data[rank][i], ranks->size * (ranks->size + 1) / 2.0, 0);
}

TEST(test_a_sum_in_place_waits_for_gradients_of_late_ranks) {
    static const int PLACED[][5] = {{2, 0, 0}, {3, 0, 0, 0}, {4, 0, 0, 2, 2}, {4, 0, 0, 0, 3}};
    for (size_t i = 0; i < sizeof PLACED / sizeof *PLACED; i++) {
        struct late late = {0};
        ranks_run_hub(PLACED[i][0], hub_on(PLACED[i][0], PLACED[i] + 1, true), late_main, &late);
    }
}
