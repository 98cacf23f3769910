/* Updates weights with the sums of their gradients.
 *
 * Dealt weights: each host has the optimizer states of some stripes, parts of HVD_STRIPE bytes, and
 * updates only the stripes that it owns.
 *
 *   Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
 *   SC'20: its first stage.
 *
 * The hosts own a tensor's stripes in turn, so a stripe has the same owner in every batch, and
 * every host has about the same work in a batch. A batch is packed by owner. Each host sums it as
 * in hosts.c. Between hosts, a ring (ring.c) sums each chunk and ends at its owner. The owner
 * updates its weights with each finished segment, and the ring then passes on the new weights
 * instead of the sums. Hosts A (0) and B (1), one lane; a0 is A's sum of the values that host 0
 * owns, S0 the sum over both hosts, W0 the new weights:
 *
 *             host A (0)          host B (1)
 *   start     a0 a1               b0 b1
 *   adding    S0 a1               b0 S1          each host receives what it owns
 *   update    W0 a1               b0 W1
 *   arriving  W0 W1               W0 W1          each host receives the rest
 *
 * The data is processed in slices, as in hosts.c. Gradients in a region are added in place, as in
 * direct.c. A rank of a lane writes the weights of its chunks to the host's memory. No rank reads
 * these weights meanwhile, because all ranks of the host have submitted their gradients. At the end
 * the ranks of the host meet in a barrier.
 *
 * Cost between hosts: as a ring, 2(h-1)/h S bytes per host. On a host: one pass of the window, an
 * update of S / h bytes of weights, copies of the rest. The order of additions depends only on the
 * owner, so the result does not depend on the batch. */
#include "collectives/hosts.h"
#include "kernels/update.h"

#include <string.h>

/* bytes that are updated at a time, then copied while they are in the L1 cache */
enum { BLOCK = 4096 };

/* The batch's part of a stripe: contiguous bytes of one tensor that one host updates. */
struct span {
    const struct coll_tensor *tensor;
    size_t at, bytes; /* offset in the batch's part of the tensor; number of bytes */
    size_t packed;    /* offset in the batch's data, which is packed by owner */
};

struct dealt {
    const struct layout *l;
    /* for the steps on the host; has its own scratch, because other steps use the caller's */
    struct coll_args args;
    struct span *spans; /* ordered by offset in the data */
    size_t nspans;
    /* begin[h]: offset in the data at which host h's stripes begin; begin[hosts]: the data's end */
    size_t *begin;
    size_t *end; /* by local rank: end of the rank's current chunk */
    size_t nslices;
};

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static size_t most_spans(const struct coll_args *args) {
    size_t n = 0;
    for (size_t i = 0; i < args->ntensors; i++) n += args->tensors[i].bytes / HVD_STRIPE + 2;
    return n;
}

/* Appends the parts of a tensor that host `owner` updates, from offset `packed` on; returns the new
 * end. */
static size_t lay_out_tensor(struct dealt *d, const struct coll_tensor *tensor, int owner,
                             size_t packed) {
    const size_t hosts = (size_t)d->l->hosts, from = tensor->before * sizeof(float),
                 to = from + tensor->bytes;
    size_t stripe = from / HVD_STRIPE;
    size_t other = (stripe + (size_t)tensor->update->first) % hosts;
    stripe += ((size_t)owner + hosts - other) % hosts;
    for (; stripe * HVD_STRIPE < to; stripe += hosts) {
        size_t begin = stripe * HVD_STRIPE, end = least(begin + HVD_STRIPE, to);
        if (begin < from) begin = from;
        d->spans[d->nspans++] = (struct span){tensor, begin - from, end - begin, packed};
        packed += end - begin;
    }
    return packed;
}

static void lay_out(struct dealt *d) {
    size_t packed = 0;
    for (int h = 0; h < d->l->hosts; h++) {
        d->begin[h] = packed;
        for (size_t i = 0; i < d->args.ntensors; i++)
            packed = lay_out_tensor(d, &d->args.tensors[i], h, packed);
    }
    d->begin[d->l->hosts] = packed;
}

/* Returns the last span that begins at or before `at`. */
static const struct span *find_span(const struct dealt *d, size_t at) {
    size_t low = 0, high = d->nspans;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (d->spans[middle].packed <= at)
            low = middle;
        else
            high = middle;
    }
    return &d->spans[low];
}

/* Works on a block of a tensor. `at`: offset of the block in the batch's part of the tensor. */
typedef void take_block(const struct dealt *d, const struct coll_tensor *tensor, size_t at,
                        char *data, size_t bytes);

struct blocks {
    const struct dealt *d;
    take_block *take;
};

/* Calls `take` for each block of a range of the data. One host owns all bytes of a block. */
static void take_range(const void *arg, struct coll_range range) {
    const struct dealt *d = ((const struct blocks *)arg)->d;
    take_block *take = ((const struct blocks *)arg)->take;
    for (const struct span *s = find_span(d, range.begin); range.begin < range.end; s++) {
        size_t end = least(s->packed + s->bytes, range.end), bytes;
        for (; range.begin < end; range.begin += bytes) {
            bytes = least(end - range.begin, BLOCK);
            take(d, s->tensor, s->at + (range.begin - s->packed),
                 (char *)d->args.data + range.begin, bytes);
        }
    }
}

/* Calls take_range on several threads. times: bytes that `take` reads per byte of the range. */
static void each_block(const struct dealt *d, struct coll_range range, int times,
                       take_block *take) {
    coll_share(&d->l->host, (size_t)times * coll_length(range), range, take_range,
               &(struct blocks){d, take});
}

static void pack(const struct dealt *d, const struct coll_tensor *tensor, size_t at, char *data,
                 size_t bytes) {
    (void)d;
    memcpy(data, tensor->in + at, bytes);
}

/* Adds the gradients of the host's ranks, which are in a region of shared memory. */
static void add(const struct dealt *d, const struct coll_tensor *tensor, size_t at, char *data,
                size_t bytes) {
    char *const *memory = d->args.memory;
    const struct comm *host = &d->l->host;
    size_t offset = (size_t)(tensor->in - memory[host->rank]) + at;
    const char *in[host->size];
    for (int i = 0; i < host->size; i++) in[i] = memory[i] + offset;
    reduce_all(d->args.reduce, data, in, host->size, bytes / sizeof(float), d->args.prescale,
               coll_final_on_host(&d->args));
}

/* Returns how many bytes an update reads for each byte of the sums: sums, weights and states. */
static int reads_of_update(const struct coll_args *args) {
    return 2 + update_states(args->tensors[0].update->rule);
}

static float *weights_at(const struct coll_tensor *tensor, size_t at) {
    return tensor->update->weights + tensor->before + at / sizeof(float);
}

static void update(const struct dealt *d, const struct coll_tensor *tensor, size_t at, char *data,
                   size_t bytes) {
    const size_t stripe_values = HVD_STRIPE / sizeof(float);
    size_t value = tensor->before + at / sizeof(float);
    /* how many earlier stripes of the tensor this host updates: their states come first */
    size_t own = value / stripe_values / (size_t)d->l->hosts;
    hvd_update stripe = *tensor->update;
    stripe.weights = weights_at(tensor, at);
    for (int i = 0; i < update_states(stripe.rule); i++)
        stripe.states[i] += own * stripe_values + value % stripe_values;
    update_apply(&stripe, (const float *)(const void *)data, 0, bytes / sizeof(float));
    memcpy(data, stripe.weights, bytes);
}

static void store(const struct dealt *d, const struct coll_tensor *tensor, size_t at, char *data,
                  size_t bytes) {
    (void)d;
    memcpy(weights_at(tensor, at), data, bytes);
}

/* ---- slices ---- */

/* Returns the part of the slice that a host owns, as a range of the data. */
static struct coll_range owned(const struct dealt *d, size_t slice, int host) {
    struct coll_range all = {d->begin[host], d->begin[host + 1]};
    return coll_cut(all, sizeof(float), (int)d->nslices, (int)slice);
}

/* Returns the part of a host's range that this rank's lane (one rank per host) sums. */
static struct coll_range own_chunk(const struct dealt *d, struct coll_range range) {
    return coll_cut(range, sizeof(float), d->l->lanes, d->l->host.rank);
}

static int sum_slice(const void *arg, size_t slice, hvd_error *err) {
    const struct dealt *d = arg;
    for (int h = 0; h < d->l->hosts; h++) {
        struct coll_range range = owned(d, slice, h);
        if (d->args.memory) {
            if (d->l->lane.size) each_block(d, own_chunk(d, range), d->l->host.size, add);
            continue;
        }
        struct coll_args args = d->args;
        args.data = (char *)args.data + range.begin;
        args.bytes = coll_length(range);
        each_block(d, range, 1, pack);
        coll_hosts_cut(d->l, args.bytes, sizeof(float), d->end);
        HVD_TRY(coll_hosts_sum(d->l, &args, d->end, coll_length(coll_part(d->end, 0)), err));
    }
    return HVD_OK;
}

/* In ring.c, rank r completes chunk r + 1, so the chunk of owner r has number r + 1. */
static struct coll_range lane_chunk(const void *arg, size_t slice, int chunk) {
    const struct dealt *d = arg;
    return own_chunk(d, owned(d, slice, (chunk + d->l->hosts - 1) % d->l->hosts));
}

/* The ring calls this function for each final segment: the owner updates weights with the sum, the
 * other hosts store the owner's new weights. */
static void update_or_store(const void *arg, struct coll_range range, bool own) {
    const struct dealt *d = arg;
    each_block(d, range, own ? reads_of_update(&d->args) : 1, own ? update : store);
}

static int run(struct dealt *d, const struct comm *comm, const struct coll_args *args,
               hvd_error *err) {
    size_t most = 0;
    for (int h = 0; h < d->l->hosts; h++)
        if (d->begin[h + 1] - d->begin[h] > most) most = d->begin[h + 1] - d->begin[h];
    d->nslices = coll_segments(most, coll_hosts_chunk(comm) * (size_t)d->l->lanes);
    size_t slice = coll_length(coll_chunk(most, sizeof(float), (int)d->nslices, 0));
    struct coll_slices slices = {.n = d->nslices,
                                 .prepare = sum_slice,
                                 .arg = d,
                                 .longest_chunk =
                                     coll_length(coll_chunk(slice, sizeof(float), d->l->lanes, 0)),
                                 .chunk = lane_chunk,
                                 .final = update_or_store};
    /* wait until all ranks of the host have written their gradients */
    if (d->args.memory) HVD_TRY(coll_meet(&d->l->host, err));
    HVD_TRY(coll_hosts_slices(d->l, args, &slices, err));
    return coll_meet(&d->l->host, err);
}

int coll_update_dealt(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct layout *l = comm->layout;
    struct scratch scratch = {0};
    struct dealt d = {.l = l, .args = *args};
    void *memory;
    size_t locals = (size_t)l->host.size, ends = ((size_t)l->hosts + 1 + locals) * sizeof(size_t);
    size_t spans = most_spans(args) * sizeof(struct span);
    HVD_TRY(scratch_get(args->outer, ends + spans, &memory, err));
    d.begin = memory;
    d.end = d.begin + l->hosts + 1;
    d.spans = (struct span *)(void *)(d.end + locals);
    d.args.scratch = &scratch;
    lay_out(&d);
    int code = run(&d, comm, args, err);
    scratch_free(&scratch);
    return code ? error_while(err, "updating weights with %zu bytes of gradients", args->bytes)
                : HVD_OK;
}

/* ---- weights that every host updates ---- */

/* Updates this rank's chunk of the weights, after the allreduce of the gradients. Each rank of the
 * host updates one chunk.
 *
 * Cost for a host: 5 S bytes of memory traffic if the rule has one optimizer state; one barrier. */
static void update_range(const void *arg, struct coll_range chunk) {
    const struct coll_args *args = arg;
    size_t begin = 0;
    for (size_t i = 0; i < args->ntensors; i++) {
        const struct coll_tensor *tensor = &args->tensors[i];
        struct coll_range part = coll_overlap(chunk, begin, tensor->bytes);
        size_t at = part.begin / sizeof(float), n = coll_length(part) / sizeof(float);
        const float *result = (const float *)(const void *)tensor->out + at;
        update_apply(tensor->update, result, tensor->before + at, n);
        begin += tensor->bytes;
    }
}

int coll_update(const struct comm *host, const struct coll_args *args, hvd_error *err) {
    struct coll_range own = coll_chunk(args->bytes, sizeof(float), host->size, host->rank);
    if (coll_length(own))
        coll_share(host, (size_t)reads_of_update(args) * coll_length(own), own, update_range, args);
    return coll_meet(host, err);
}
