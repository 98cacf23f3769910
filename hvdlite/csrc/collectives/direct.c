/* Direct allreduce: reduces tensors in place, in memory that all ranks of the host can read and
 * write.
 *
 * Each rank adds its chunk of all ranks' tensors, in the order of ranks, and writes the sum to
 * every rank's memory. Nothing is staged or packed. p = 2:
 *
 *            memory of a            memory of b
 *   before   a0 a1                  b0 b1
 *   after    S0 S1                  S0 S1          rank a has written S0, rank b S1, in both
 *
 * Cost: 2 p S bytes of memory traffic in total, the least possible, because every input is read
 * once and every result written once; two barriers.
 *
 * If tensors have an update, their values do not change. Each rank updates the weights of its chunk
 * with the sum while the sum is in the L1 cache. With one optimizer state, this costs (p + 4) S
 * bytes in total, instead of 2 p S for the sums and 5 p S for updates of p copies of the weights.
 *
 * With several hosts (hosts.c), a rank of a lane adds its chunk of its host's tensors, its lane
 * sums the results over the hosts, and the rank writes the final sum to its host's memory. Large
 * chunks are processed in slices: while one slice is on the lane, the rank adds the next slice and
 * writes the previous slice. No other rank of the host uses the chunk meanwhile, so the ranks meet
 * only at the beginning and the end. Cost: the lane's algorithm for S / lanes bytes and the same
 * memory traffic, plus 2 S if several tensors are packed for the lane. Ten arrays of 4 MB on hosts
 * without link limits, two cores for all ranks, times of direct.c / hosts.c:
 *
 *                                 ms         CPU seconds per GB
 *   2 hosts x 2 ranks, float32    47 / 70    0.48 / 0.76
 *   2 hosts x 4 ranks, float32    86 / 131   0.45 / 0.75
 *   3 hosts x 2 ranks, float16   129 / 185   0.83 / 1.20 */
#include "collectives/hosts.h"
#include "kernels/update.h"

#include <string.h>

/* bytes that are added at a time, then copied while they are in the L1 cache */
enum { BLOCK = 4096 };

struct direct {
    const struct comm *host;
    const struct coll_args *args;
    int n, self;           /* number of ranks; this rank */
    struct coll_range own; /* this rank's chunk */
    /* Only for several hosts: */
    const struct layout *l;
    struct reduce_final final; /* how this host scales its result */
    size_t slice;              /* bytes of a slice of the chunk */
    char *lane; /* this host's sums of the chunk, before and after the sum over all hosts */
};

/* A block of one tensor. Offsets of the block: `at` in the tensor, `offset` in every rank's memory,
 * and `packed` in the batch as if all tensors were packed. */
struct block {
    const struct coll_tensor *tensor;
    size_t at, offset, packed, bytes;
};

typedef void take_block(const struct direct *d, struct block block);

struct blocks {
    const struct direct *d;
    take_block *take;
};

static void take_range(const void *arg, struct coll_range range) {
    const struct blocks *blocks = arg;
    const struct direct *d = blocks->d;
    const char *own = d->args->memory[d->self];
    size_t begin = 0;
    for (size_t i = 0; i < d->args->ntensors && begin < range.end; i++) {
        const struct coll_tensor *tensor = &d->args->tensors[i];
        size_t offset = (size_t)(tensor->in - own);
        struct coll_range part = coll_overlap(range, begin, tensor->bytes);
        for (size_t at = part.begin; at < part.end; at += BLOCK) {
            size_t bytes = part.end - at < BLOCK ? part.end - at : BLOCK;
            blocks->take(d, (struct block){tensor, at, offset + at, begin + at, bytes});
        }
        begin += tensor->bytes;
    }
}

/* Calls `take` for each block of a range of the batch. bytes: as for coll_share. */
static void each_block(const struct direct *d, size_t bytes, struct coll_range range,
                       take_block *take) {
    coll_share(d->host, bytes, range, take_range, &(struct blocks){d, take});
}

/* Writes the sum of a block over all ranks to `sum`. */
static void add_to(const struct direct *d, struct block b, struct reduce_final final, void *sum) {
    const struct reduce_kernels *k = d->args->reduce;
    const char *in[d->n];
    for (int i = 0; i < d->n; i++) in[i] = d->args->memory[i] + b.offset;
    reduce_all(k, sum, in, d->n, b.bytes / k->size, d->args->prescale, final);
}

/* Writes the sum of a block to every rank's memory. */
static void add_block(const struct direct *d, struct block b) {
    char *const *memory = d->args->memory;
    add_to(d, b, d->args->final, memory[0] + b.offset);
    for (int i = 1; i < d->n; i++) memcpy(memory[i] + b.offset, memory[0] + b.offset, b.bytes);
}

static void update_block(const struct direct *d, struct block b) {
    const struct reduce_kernels *k = d->args->reduce;
    float sum[BLOCK / sizeof(float)];
    add_to(d, b, d->args->final, sum);
    update_apply(b.tensor->update, sum, b.tensor->before + b.at / k->size, b.bytes / k->size);
}

static void add_or_update(const struct direct *d, struct block b) {
    (b.tensor->update ? update_block : add_block)(d, b);
}

static struct direct open_direct(const struct comm *host, const struct coll_args *args) {
    return (struct direct){
        .host = host, .args = args, .n = host->window->n, .self = host->window->self};
}

int coll_direct_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct direct d = open_direct(comm, args);
    if (!args->bytes) return HVD_OK;
    HVD_TRY(coll_meet(comm, err)); /* wait until all ranks have written their inputs */
    d.own = coll_chunk(args->bytes, args->reduce->size, d.n, d.self);
    /* the work reads args->bytes (a chunk in each of n memories), and the weights and states */
    const hvd_update *update = args->tensors[0].update;
    size_t more = update ? (1 + (size_t)update_states(update->rule)) * coll_length(d.own) : 0;
    each_block(&d, args->bytes + more, d.own, add_or_update);
    comm_count_window(comm, coll_length(d.own) * (size_t)(d.n - 1));
    return coll_meet(comm, err); /* wait until all ranks have written their sums */
}

/* ---- on several hosts ---- */

static char *lane_at(const struct direct *d, struct block b) {
    return d->lane + (b.packed - d->own.begin);
}

static void add_block_to_lane(const struct direct *d, struct block b) {
    add_to(d, b, d->final, lane_at(d, b));
}

static void spread_block(const struct direct *d, struct block b) {
    for (int i = 0; i < d->n; i++) {
        char *to = d->args->memory[i] + b.offset;
        if (to != lane_at(d, b)) memcpy(to, lane_at(d, b), b.bytes);
    }
}

static struct coll_range slice_range(const struct direct *d, size_t i) {
    return coll_segment((struct coll_range){0, coll_length(d->own)}, d->slice, i);
}

static struct coll_range lane_chunk(const void *arg, size_t i, int chunk) {
    const struct direct *d = arg;
    return coll_cut(slice_range(d, i), d->args->reduce->size, d->l->hosts, chunk);
}

static void each_block_of_slice(const struct direct *d, size_t i, take_block *take) {
    struct coll_range range = slice_range(d, i);
    size_t bytes = coll_length(range) * (size_t)d->n, begin = d->own.begin;
    each_block(d, bytes, (struct coll_range){begin + range.begin, begin + range.end}, take);
}

static int add_slice(const void *arg, size_t i, hvd_error *err) {
    (void)err;
    each_block_of_slice(arg, i, add_block_to_lane);
    return HVD_OK;
}

static int spread_slice(const void *arg, size_t i, hvd_error *err) {
    (void)err;
    each_block_of_slice(arg, i, spread_block);
    return HVD_OK;
}

/* Sums this rank's chunk over the hosts. Only for a rank in a lane (comm.h). */
static int run_lane(struct direct *d, const struct comm *comm, hvd_error *err) {
    struct coll_args lane = *d->args;
    lane.data = d->lane;
    lane.bytes = coll_length(d->own);
    lane.tensors = NULL;
    lane.memory = NULL;
    struct coll_slices slices = {.chunk = lane_chunk,
                                 .prepare = add_slice,
                                 .finish = spread_slice,
                                 .arg = d,
                                 .longest_chunk = coll_hosts_chunk(comm)};
    d->slice = slices.longest_chunk * (size_t)d->l->hosts;
    slices.n = coll_segments(lane.bytes, d->slice);
    if (slices.n > 1 && coll_hosts_in_slices(comm, d->args->reduce, d->slice))
        return coll_hosts_slices(d->l, &lane, &slices, err);
    d->slice = lane.bytes;
    HVD_TRY(add_slice(d, 0, err));
    HVD_TRY(coll_hosts_lane(d->l, &lane, err));
    return spread_slice(d, 0, err);
}

/* Finds memory for the sums of the chunk. If there is only one tensor, the sums replace this rank's
 * inputs in the chunk, because no other rank reads these inputs. */
static int find_lane_memory(struct direct *d, hvd_error *err) {
    const struct coll_args *args = d->args;
    void *memory = NULL;
    if (args->ntensors == 1)
        memory = (char *)args->tensors[0].in + d->own.begin;
    else
        HVD_TRY(scratch_get(args->outer, coll_length(d->own), &memory, err));
    d->lane = memory;
    return HVD_OK;
}

int coll_hosts_direct(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct layout *l = comm->layout;
    struct direct d = open_direct(&l->host, args);
    d.l = l;
    d.final = coll_final_on_host(args);
    int code = coll_meet(&l->host, err);
    if (!code && l->lane.size) {
        d.own = coll_chunk(args->bytes, args->reduce->size, l->lanes, l->host.rank);
        code = find_lane_memory(&d, err);
        if (!code && coll_length(d.own)) code = run_lane(&d, comm, err);
        comm_count_window(comm, coll_length(d.own) * (size_t)(d.n - 1));
    }
    return code ? code : coll_meet(&l->host, err);
}
