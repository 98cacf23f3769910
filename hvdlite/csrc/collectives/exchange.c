/* Exchanges: sends to a peer and receives from another at the same time, several of them in flight.
 *
 * What alltoall and Adasum are made of. Item i is sent and received under the same number on all
 * ranks, and every rank posts items up to IN_FLIGHT ahead of the one that it waits for: so the rank
 * that is furthest behind finds all that it needs posted by the others, and gets on.
 *
 * Cost of an exchange of S bytes each way: a + S b, both directions of the link busy. */
#include "collectives/coll.h"

enum { IN_FLIGHT = 4 }; /* items each way */

struct flight {
    struct transport *t;
    struct transfer out[IN_FLIGHT], in[IN_FLIGHT]; /* of item i at i % IN_FLIGHT */
};

static int post(struct flight *f, struct coll_exchange x, size_t i, hvd_error *err) {
    if (x.in_bytes)
        HVD_TRY(transport_irecv(f->t, x.in, x.in_bytes, x.from, &f->in[i % IN_FLIGHT], err));
    if (x.out_bytes)
        HVD_TRY(transport_isend(f->t, x.out, x.out_bytes, x.to, &f->out[i % IN_FLIGHT], err));
    return HVD_OK;
}

static int finish(struct flight *f, size_t i, hvd_error *err) {
    HVD_TRY(transport_wait(f->t, &f->in[i % IN_FLIGHT], err));
    return transport_wait(f->t, &f->out[i % IN_FLIGHT], err);
}

int coll_exchange_items(struct transport *t, coll_item *item, const void *arg, size_t items,
                        hvd_error *err) {
    struct flight f = {.t = t};
    for (size_t i = 0; i < items + IN_FLIGHT; i++) {
        if (i >= IN_FLIGHT) HVD_TRY(finish(&f, i - IN_FLIGHT, err));
        if (i < items) HVD_TRY(post(&f, item(arg, i), i, err));
    }
    return HVD_OK;
}

static struct coll_exchange segment_of(const void *arg, size_t i) {
    struct coll_exchange x = *(const struct coll_exchange *)arg;
    struct coll_range out = coll_segment((struct coll_range){0, x.out_bytes}, COLL_SEGMENT, i);
    struct coll_range in = coll_segment((struct coll_range){0, x.in_bytes}, COLL_SEGMENT, i);
    return (struct coll_exchange){
        x.out + out.begin, x.in + in.begin, coll_length(out), coll_length(in), x.to, x.from};
}

int coll_exchange(struct transport *t, struct coll_exchange x, hvd_error *err) {
    size_t most = x.out_bytes > x.in_bytes ? x.out_bytes : x.in_bytes;
    return coll_exchange_items(t, segment_of, &x, (most + COLL_SEGMENT - 1) / COLL_SEGMENT, err);
}
