/* Pipeline: exchanges in a fixed order, several of them in flight each way.
 *
 * All algorithms by messages but pairwise use it. Item i has the same number on both ranks.
 * Receives are posted up to `receive_ahead` items ahead of the item that a rank waits for, sends up
 * to `send_ahead`. So the rank that is furthest behind finds the sends and receives that it needs
 * posted by the others, and no two ranks wait for each other.
 *
 * Cost of n items of S bytes each way: n (a + S b), both directions of the link busy. */
#include "collectives/coll.h"

struct flight {
    const struct comm *comm;
    const struct coll_pipeline *p;
    size_t received, sent;                                   /* items below these are posted */
    struct transfer in[COLL_IN_FLIGHT], out[COLL_IN_FLIGHT]; /* of item i at i % COLL_IN_FLIGHT */
};

/* MPI forbids a receive into memory that a send still reads. */
static int wait_until_sent(struct flight *f, size_t i, hvd_error *err) {
    if (i + COLL_IN_FLIGHT < f->sent) return HVD_OK; /* a later item reuses its transfer */
    return comm_wait(f->comm, &f->out[i % COLL_IN_FLIGHT], err);
}

static int receive_next(struct flight *f, hvd_error *err) {
    size_t i = f->received++;
    struct coll_exchange x = f->p->item(f->p->arg, i);
    if (!x.in_bytes) return HVD_OK;
    if (f->p->reuse && i >= f->p->reuse) HVD_TRY(wait_until_sent(f, i - f->p->reuse, err));
    return comm_irecv(f->comm, x.in, x.in_bytes, x.from, &f->in[i % COLL_IN_FLIGHT], err);
}

static int send_next(struct flight *f, hvd_error *err) {
    size_t i = f->sent;
    struct coll_exchange x = f->p->item(f->p->arg, i);
    HVD_TRY(comm_wait(f->comm, &f->out[i % COLL_IN_FLIGHT], err));
    f->sent++;
    if (!x.out_bytes) return HVD_OK;
    return comm_isend(f->comm, x.out, x.out_bytes, x.to, &f->out[i % COLL_IN_FLIGHT], err);
}

static int finish(struct flight *f, size_t i, hvd_error *err) {
    const struct coll_pipeline *p = f->p;
    while (f->received < p->items && f->received < i + p->receive_ahead)
        HVD_TRY(receive_next(f, err));
    while (f->sent < p->items && f->sent < i + p->send_ahead) HVD_TRY(send_next(f, err));
    HVD_TRY(comm_wait(f->comm, &f->in[i % COLL_IN_FLIGHT], err));
    if (p->received) p->received(p->arg, i);
    return HVD_OK;
}

int coll_pipeline(const struct comm *comm, const struct coll_pipeline *p, hvd_error *err) {
    struct flight f = {.comm = comm, .p = p};
    for (size_t i = 0; i < p->items; i++)
        if (finish(&f, i, err)) return error_while(err, "in item %zu of %zu", i + 1, p->items);
    while (f.sent < p->items) HVD_TRY(send_next(&f, err));
    for (size_t i = 0; i < COLL_IN_FLIGHT; i++) HVD_TRY(comm_wait(comm, &f.out[i], err));
    return HVD_OK;
}

static struct coll_exchange segment_of(const void *arg, size_t i) {
    struct coll_exchange x = *(const struct coll_exchange *)arg;
    struct coll_range out = coll_segment((struct coll_range){0, x.out_bytes}, COLL_SEGMENT, i);
    struct coll_range in = coll_segment((struct coll_range){0, x.in_bytes}, COLL_SEGMENT, i);
    return (struct coll_exchange){
        x.out + out.begin, x.in + in.begin, coll_length(out), coll_length(in), x.to, x.from};
}

int coll_exchange(const struct comm *comm, struct coll_exchange x, hvd_error *err) {
    size_t most = x.out_bytes > x.in_bytes ? x.out_bytes : x.in_bytes;
    struct coll_pipeline p = {.items = coll_segments(most),
                              .item = segment_of,
                              .arg = &x,
                              .receive_ahead = COLL_IN_FLIGHT,
                              .send_ahead = COLL_IN_FLIGHT};
    return coll_pipeline(comm, &p, err);
}
