/* Ring: reduce-scatter, then allgather; and the allgather alone.
 *
 *   Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 *   J. Parallel Distrib. Comput. 69 (2009).
 *
 * The data is cut into p chunks. In each step every rank sends one chunk to its right neighbor and
 * receives one chunk from its left neighbor. In the first p - 1 steps a rank adds the received
 * chunk to its data; after them rank r has the complete sum of chunk r + 1. In p - 1 more steps the
 * complete chunks travel around the ring and replace the data. p = 3; a0 is chunk 0 of rank a, S0
 * the sum a0 + b0 + c0:
 *
 *            rank a             rank b             rank c
 *   start    a0 a1 a2           b0 b1 b2           c0 c1 c2
 *   step 0   a0 a1 a2+c2        a0+b0 b1 b2        c0 b1+c1 c2           sends chunk r
 *   step 1   a0 S1 a2+c2        a0+b0 b1 S2        S0 b1+c1 c2           sends chunk r - 1
 *   step 2   S0 S1 .            .  S1 S2           S0 .  S2              sends chunk r - 2 = r + 1
 *   step 3   S0 S1 S2           S0 S1 S2           S0 S1 S2              sends chunk r - 3 = r
 *
 * Step s: send chunk r - s, receive chunk r - s - 1 (mod p). Chunks travel in segments; a rank
 * sends a segment on as soon as it has added it. All segments have the same length, because with a
 * short last segment the link would be idle until the next step's first segment arrives. Item i of
 * the pipeline is segment i % nseg of step i / nseg; the items of a step overlap with the items of
 * the next step.
 *
 * Data may be processed in slices (struct coll_slices). Each slice is a ring, and the next ring
 * begins while the last segments of the previous ring are in flight.
 *
 * Cost: 2(p-1) a + 2(p-1)/p S b + (p-1)/p S g: the fewest bytes possible, and both directions of
 * every link are busy. Sums travel in the dtype, so a dtype with a wider accumulator would be
 * rounded p - 1 times: such dtypes use pairwise.c instead. */
#include "collectives/algorithm.h"

struct ring {
    const struct comm *comm;
    const struct coll_args *args;
    int rank, size;
    size_t segment; /* bytes of a segment */
    size_t nseg;    /* number of segments of the longest chunk */
    size_t depth;   /* number of segments in flight */
    size_t items;   /* number of items of a slice */
    /* the first `added` items of a slice are added to the data, the other items replace data */
    size_t added;
    char *slots; /* `depth` segments: memory for the received items that are added */
    const struct coll_slices *slices; /* NULL: the data is not in slices */
};

static struct coll_range chunk_range(const struct ring *r, size_t slice, int chunk) {
    const struct coll_args *args = r->args;
    if (args->kind != HVD_ALLREDUCE) return coll_part(args->part_end, chunk);
    if (r->slices) return r->slices->chunk(r->slices->arg, slice, chunk);
    return coll_chunk(args->bytes, args->reduce->size, r->size, chunk);
}

/* Returns the range of item i in the data. back 0: the range that is sent; back 1: the range that
 * is received. */
static struct coll_range item_range(const struct ring *r, size_t i, size_t back) {
    size_t p = (size_t)r->size, step = i % r->items / r->nseg % p;
    size_t chunk = ((size_t)r->rank + 2 * p - step - back) % p;
    return coll_segment(chunk_range(r, i / r->items, (int)chunk), r->segment, i % r->nseg);
}

static bool is_added(const struct ring *r, size_t i) { return i % r->items < r->added; }

static char *slot_of(const struct ring *r, size_t i) {
    return r->slots + i % r->depth * r->segment;
}

static struct coll_exchange item_of(const void *arg, size_t i) {
    const struct ring *r = arg;
    struct coll_range out = item_range(r, i, 0), in = item_range(r, i, 1);
    char *data = r->args->data;
    return (struct coll_exchange){.out = data + out.begin,
                                  .in = is_added(r, i) ? slot_of(r, i) : data + in.begin,
                                  .out_bytes = coll_length(out),
                                  .in_bytes = coll_length(in),
                                  .to = (r->rank + 1) % r->size,
                                  .from = (r->rank + r->size - 1) % r->size};
}

/* A received segment, and the data to which it is added. */
struct addition {
    const struct coll_args *args;
    char *data;
    const char *slot;
    bool last;
};

/* The last addition also scales the sum, while the sum is in the cache. */
static void add_range(const void *arg, struct coll_range range) {
    const struct addition *a = arg;
    const struct reduce_kernels *k = a->args->reduce;
    char *data = a->data + range.begin;
    size_t n = coll_length(range) / k->size;
    k->combine(data, a->slot + range.begin, n);
    if (a->last && (a->args->final.scale != 1 || a->args->final.divisor != 1))
        k->narrow(data, data, n, a->args->final);
}

static void add(const struct ring *r, struct coll_range range, const char *slot, bool last) {
    struct addition a = {r->args, (char *)r->args->data + range.begin, slot, last};
    size_t bytes = coll_length(range);
    coll_share(r->comm, 2 * bytes, (struct coll_range){0, bytes}, add_range, &a);
}

static int take_item(const void *arg, size_t i, hvd_error *err) {
    const struct ring *r = arg;
    struct coll_range range = item_range(r, i, 1);
    bool adds = is_added(r, i), final = i % r->items + r->nseg >= r->added;
    (void)err;
    if (!coll_length(range)) return HVD_OK;
    if (adds) add(r, range, slot_of(r, i), final);
    if (final && r->slices && r->slices->final) r->slices->final(r->slices->arg, range, adds);
    return HVD_OK;
}

/* Returns the length of the longest chunk; if there are slices, the longest of the first slice. */
static size_t longest_chunk(const struct ring *r) {
    size_t longest = 0;
    for (int i = 0; i < r->size; i++) {
        size_t length = coll_length(chunk_range(r, 0, i));
        if (length > longest) longest = length;
    }
    return longest;
}

/* Item i can be sent when item i - nseg, the same segment in the previous step, has arrived. */
static int run_ring(const struct comm *comm, const struct coll_args *args, size_t adding,
                    const struct coll_slices *slices, hvd_error *err) {
    size_t others = (size_t)comm->size - 1;
    struct pace pace = comm_pace(comm);
    struct ring r = {.comm = comm,
                     .args = args,
                     .rank = comm->rank,
                     .size = comm->size,
                     .segment = pace.segment,
                     .slices = slices};
    size_t longest = slices ? slices->longest_chunk : longest_chunk(&r);
    r.nseg = coll_segments(longest, r.segment);
    if (r.nseg) r.segment = coll_segments(longest, r.nseg * PACE_UNIT) * PACE_UNIT;
    r.depth = r.nseg < pace.depth ? r.nseg : pace.depth;
    r.added = r.nseg * adding;
    r.items = r.nseg * (adding + others);
    void *slots = NULL;
    if (adding) HVD_TRY(scratch_get(args->scratch, r.depth * r.segment, &slots, err));
    r.slots = slots;
    struct coll_pipeline p = {.items = r.items * (slices ? slices->n : 1),
                              .item = item_of,
                              .received = take_item,
                              .arg = &r,
                              .depth = r.depth,
                              .send_ahead = r.depth,
                              .reuse = r.nseg * others,
                              .slices = slices};
    return coll_pipeline(comm, &p, err);
}

int coll_ring_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct reduce_kernels *k = args->reduce;
    if (args->prescale != 1)
        coll_widen(comm, k, args->data, args->data, args->bytes / k->size, args->prescale);
    return run_ring(comm, args, (size_t)comm->size - 1, NULL, err);
}

int coll_ring_slices(const struct comm *comm, const struct coll_args *args,
                     const struct coll_slices *slices, hvd_error *err) {
    return run_ring(comm, args, (size_t)comm->size - 1, slices, err);
}

int coll_ring_allgather(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct coll_range own = coll_part(args->part_end, comm->rank);
    coll_copy(comm, (char *)args->data + own.begin, args->in, coll_length(own));
    return run_ring(comm, args, 0, NULL, err);
}
