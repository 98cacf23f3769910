/* Ring: reduce-scatter, then allgather; and the allgather alone.
 *
 *   Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 *   J. Parallel Distrib. Comput. 69 (2009).
 *
 * The data is cut into p chunks. In each step every rank sends one chunk to its right neighbour and
 * receives one from its left. For p - 1 steps what comes in is added to what is there: then rank r
 * has the whole sum of chunk r + 1. For p - 1 more steps finished chunks go round and replace.
 * p = 3; a0 is chunk 0 of rank a, S0 the sum a0 + b0 + c0:
 *
 *            rank a             rank b             rank c
 *   start    a0 a1 a2           b0 b1 b2           c0 c1 c2
 *   step 0   a0 a1 a2+c2        a0+b0 b1 b2        c0 b1+c1 c2           sends chunk r
 *   step 1   a0 S1 a2+c2        a0+b0 b1 S2        S0 b1+c1 c2           sends chunk r - 1
 *   step 2   S0 S1 .            .  S1 S2           S0 .  S2              sends chunk r - 2 = r + 1
 *   step 3   S0 S1 S2           S0 S1 S2           S0 S1 S2              sends chunk r - 3 = r
 *
 * Step s: send chunk r - s, receive chunk r - s - 1 (mod p). Chunks travel in segments, and a
 * segment goes on as soon as it has been added: "item" i is segment i % nseg of step i / nseg, and
 * the items of one step overlap with those of the next. Some are in flight each way at any time.
 *
 * Cost: 2(p-1) a + 2(p-1)/p S b + (p-1)/p S g: the least bytes there can be, both directions of
 * every link busy. Restriction: sums travel in the dtype itself, so dtypes with a wider
 * accumulator, which would be rounded p - 1 times, go pairwise instead. */
#include "collectives/coll.h"

#include <string.h>

enum { IN_FLIGHT = 4 }; /* items in flight each way; fewer when a chunk has fewer segments */

struct ring {
    struct transport *t;
    const struct coll_job *job;
    size_t nseg, items,
        ahead;    /* segments a chunk; all items; how far receives and sends run ahead */
    size_t added; /* items before this one are added, the others replace */
    char *slots;  /* IN_FLIGHT segments, where items to be added arrive */
    size_t sent;  /* items before this one are on their way */
    struct transfer send[IN_FLIGHT], receive[IN_FLIGHT]; /* of item i at i % IN_FLIGHT */
};

static struct coll_range chunk_range(const struct ring *r, int chunk) {
    const struct coll_job *job = r->job;
    if (job->kind == HVD_ALLREDUCE)
        return coll_chunk(job->bytes, job->reduce->size, r->t->at.size, chunk);
    return coll_part(job->part_end, chunk);
}

/* Where item i lies in the data: `back` 0 for the one sent, 1 for the one received. */
static struct coll_range item_range(const struct ring *r, size_t i, size_t back) {
    size_t p = (size_t)r->t->at.size, step = i / r->nseg % p;
    size_t chunk = ((size_t)r->t->at.rank + 2 * p - step - back) % p;
    return coll_segment(chunk_range(r, (int)chunk), COLL_SEGMENT, i % r->nseg);
}

static int post_receive(struct ring *r, size_t i, hvd_error *err) {
    struct coll_range range = item_range(r, i, 1);
    if (!coll_length(range)) return HVD_OK;
    char *to = (char *)r->job->data + range.begin;
    size_t round = r->nseg * (size_t)(r->t->at.size - 1);
    if (i < r->added) {
        to = r->slots + i % IN_FLIGHT * COLL_SEGMENT;
    } else if (i >= round && i - round + IN_FLIGHT >= r->sent) {
        /* The same place was sent from one round ago: MPI wants that transfer complete first. */
        HVD_TRY(transport_wait(r->t, &r->send[(i - round) % IN_FLIGHT], err));
    }
    int left = (r->t->at.rank + r->t->at.size - 1) % r->t->at.size;
    return transport_irecv(r->t, to, coll_length(range), left, &r->receive[i % IN_FLIGHT], err);
}

static int send_next(struct ring *r, hvd_error *err) {
    size_t i = r->sent;
    struct coll_range range = item_range(r, i, 0);
    HVD_TRY(transport_wait(r->t, &r->send[i % IN_FLIGHT], err));
    r->sent++;
    if (!coll_length(range)) return HVD_OK;
    int right = (r->t->at.rank + 1) % r->t->at.size;
    return transport_isend(r->t, (char *)r->job->data + range.begin, coll_length(range), right,
                           &r->send[i % IN_FLIGHT], err);
}

static int finish_receive(struct ring *r, size_t i, hvd_error *err) {
    HVD_TRY(transport_wait(r->t, &r->receive[i % IN_FLIGHT], err));
    struct coll_range range = item_range(r, i, 1);
    if (i >= r->added || !coll_length(range)) return HVD_OK;
    const struct reduce_kernels *k = r->job->reduce;
    char *data = (char *)r->job->data + range.begin;
    size_t n = coll_length(range) / k->size;
    k->combine(data, r->slots + i % IN_FLIGHT * COLL_SEGMENT, n);
    bool whole =
        i + r->nseg >= r->added; /* the last addition: still in the cache, so scale it now */
    if (whole && (r->job->final.scale != 1 || r->job->final.divisor != 1))
        k->narrow(data, data, n, r->job->final);
    return HVD_OK;
}

/* Runs the items in order. No rank waits for one that waits for it: the rank that is furthest
 * behind finds all that it needs sent and received by the others, who run at most `ahead` items
 * ahead. */
static int run_items(struct ring *r, hvd_error *err) {
    size_t posted = 0;
    for (size_t i = 0; i < r->items; i++) {
        for (; posted < r->items && posted < i + r->ahead; posted++)
            HVD_TRY(post_receive(r, posted, err));
        while (r->sent < r->items && r->sent < i + r->ahead) HVD_TRY(send_next(r, err));
        if (finish_receive(r, i, err))
            return error_while(err, "in ring item %zu of %zu", i + 1, r->items);
    }
    for (size_t i = 0; i < IN_FLIGHT; i++) HVD_TRY(transport_wait(r->t, &r->send[i], err));
    return HVD_OK;
}

static int run_ring(struct transport *t, const struct coll_job *job, size_t adding,
                    hvd_error *err) {
    size_t longest = 0, steps = adding + (size_t)t->at.size - 1;
    struct ring r = {.t = t, .job = job};
    for (int i = 0; i < t->at.size; i++) {
        size_t length = coll_length(chunk_range(&r, i));
        if (length > longest) longest = length;
    }
    r.nseg = (longest + COLL_SEGMENT - 1) / COLL_SEGMENT;
    r.items = r.nseg * steps;
    r.added = r.nseg * adding;
    r.ahead = r.nseg < IN_FLIGHT ? r.nseg : IN_FLIGHT;
    void *slots = NULL;
    if (adding) HVD_TRY(scratch_get(job->scratch, IN_FLIGHT * COLL_SEGMENT, &slots, err));
    r.slots = slots;
    return run_items(&r, err);
}

int coll_ring_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err) {
    const struct reduce_kernels *k = job->reduce;
    if (job->prescale != 1) k->widen(job->data, job->data, job->bytes / k->size, job->prescale);
    return run_ring(t, job, (size_t)t->at.size - 1, err);
}

int coll_ring_allgather(struct transport *t, const struct coll_job *job, hvd_error *err) {
    struct coll_range own = coll_part(job->part_end, t->at.rank);
    if (coll_length(own)) memcpy((char *)job->data + own.begin, job->in, coll_length(own));
    return run_ring(t, job, 0, err);
}
