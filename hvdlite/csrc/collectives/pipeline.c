/* Pipeline: exchanges in a fixed order, several of them in flight in each direction.
 *
 * All algorithms that send messages use it. An item has the same number on both of its ranks. A
 * rank posts receives up to `depth` items ahead of the item that it waits for, and sends up to
 * `send_ahead` items ahead. So other ranks have already posted the sends and receives that the
 * slowest rank needs, and no two ranks wait for each other.
 *
 * The items may belong to slices. While the caller works on a slice, items of the next slice are on
 * the links.
 *
 * Cost of n items of S bytes in each direction: n (a + S b); both directions of the link are
 * busy. */
#include "collectives/algorithm.h"
#include "collectives/costs.h"

struct flight {
    const struct comm *comm;
    const struct coll_pipeline *p;
    /* number of items with a posted receive; number of items with a posted send */
    size_t received, sent;
    struct waiter stream;
    /* the transfers of item i are at index i % depth */
    struct transfer in[PACE_MOST_DEPTH], out[PACE_MOST_DEPTH];
};

static int wait_for(struct flight *f, struct transfer *x, hvd_error *err) {
    return comm_wait(f->comm, x, &f->stream, err);
}

/* Waits until the send of item i is complete. Before that, MPI forbids a receive into the memory of
 * item i. */
static int wait_until_sent(struct flight *f, size_t i, hvd_error *err) {
    /* a later item has reused the transfer, so the send is complete */
    if (i + f->p->depth < f->sent) return HVD_OK;
    return wait_for(f, &f->out[i % f->p->depth], err);
}

static int receive_next(struct flight *f, hvd_error *err) {
    size_t i = f->received++;
    struct coll_exchange x = f->p->item(f->p->arg, i);
    if (!x.in_bytes) return HVD_OK;
    if (f->p->reuse && i >= f->p->reuse) HVD_TRY(wait_until_sent(f, i - f->p->reuse, err));
    return comm_irecv(f->comm, x.in, x.in_bytes, x.from, &f->in[i % f->p->depth], err);
}

static int send_next(struct flight *f, hvd_error *err) {
    size_t i = f->sent;
    struct coll_exchange x = f->p->item(f->p->arg, i);
    HVD_TRY(wait_for(f, &f->out[i % f->p->depth], err));
    f->sent++;
    if (!x.out_bytes) return HVD_OK;
    return comm_isend(f->comm, x.out, x.out_bytes, x.to, &f->out[i % f->p->depth], err);
}

/* Called after item i. At the first item of a slice, prepares the next slice; at the last item,
 * finishes the slice. The caller has prepared the first slice itself. */
static int visit_slice(const struct coll_pipeline *p, size_t i, hvd_error *err) {
    const struct coll_slices *slices = p->slices;
    size_t items = p->items / slices->n, slice = i / items, k = i % items;
    if (k == 0 && slice + 1 < slices->n) HVD_TRY(slices->prepare(slices->arg, slice + 1, err));
    bool finishes = k + 1 == items && slices->finish;
    return finishes ? slices->finish(slices->arg, slice, err) : HVD_OK;
}

static int finish(struct flight *f, size_t i, hvd_error *err) {
    const struct coll_pipeline *p = f->p;
    while (f->received < p->items && f->received < i + p->depth) HVD_TRY(receive_next(f, err));
    while (f->sent < p->items && f->sent < i + p->send_ahead) HVD_TRY(send_next(f, err));
    HVD_TRY(wait_for(f, &f->in[i % p->depth], err));
    if (p->received) HVD_TRY(p->received(p->arg, i, err));
    return p->slices ? visit_slice(p, i, err) : HVD_OK;
}

int coll_pipeline(const struct comm *comm, const struct coll_pipeline *p, hvd_error *err) {
    struct flight f = {.comm = comm, .p = p};
    for (size_t i = 0; i < p->items; i++)
        if (finish(&f, i, err)) return error_while(err, "moving part %zu of %zu", i + 1, p->items);
    while (f.sent < p->items) HVD_TRY(send_next(&f, err));
    for (size_t i = 0; i < p->depth; i++) HVD_TRY(wait_for(&f, &f.out[i], err));
    return HVD_OK;
}

struct cut {
    struct coll_exchange whole;
    size_t segment;
};

static struct coll_exchange segment_of(const void *arg, size_t i) {
    const struct cut *c = arg;
    struct coll_exchange x = c->whole;
    struct coll_range out = coll_segment((struct coll_range){0, x.out_bytes}, c->segment, i);
    struct coll_range in = coll_segment((struct coll_range){0, x.in_bytes}, c->segment, i);
    return (struct coll_exchange){
        x.out + out.begin, x.in + in.begin, coll_length(out), coll_length(in), x.to, x.from};
}

int coll_exchange(const struct comm *comm, struct coll_exchange x, hvd_error *err) {
    size_t most = x.out_bytes > x.in_bytes ? x.out_bytes : x.in_bytes;
    size_t depth = coll_exchange_depth(comm);
    struct cut cut = {x, comm_pace(comm).segment};
    struct coll_pipeline p = {.items = coll_segments(most, cut.segment),
                              .item = segment_of,
                              .arg = &cut,
                              .depth = depth,
                              .send_ahead = depth};
    return coll_pipeline(comm, &p, err);
}
