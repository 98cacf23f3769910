/* Collectives in two levels: on each host in its window, between hosts along the lanes
 * (transport/comm.h).
 *
 *   Jain et al., "Framework for Scalable Intra-Node Collective Operations using Shared Memory",
 *   SC'18, and the two levels of Horovod's hierarchical allreduce.
 *
 * Allreduce: the data is cut into one chunk per lane. The ranks of a host sum chunk l; the sum goes
 * to the host's rank in lane l. Lane l sums chunk l over the hosts; then each host gathers its
 * chunks. p = 4, hosts {a, b} and {c, d}, lanes {a, c} and {b, d}:
 *
 *            rank a           rank b           rank c           rank d
 *   start    a0 a1            b0 b1            c0 c1            d0 d1
 *   host     a0+b0            a1+b1            c0+d0            c1+d1
 *   lane     S0               S1               S0               S1
 *   host     S0 S1            S0 S1            S0 S1            S0 S1
 *
 * Broadcast: first along the root's lane, then on the other hosts.
 *
 * Large data is processed in slices, so that hosts add and gather some slices while other slices
 * are on the lanes:
 *
 *   host     add 0   add 1           gather 0, add 2   gather 1, add 3   ...
 *   lane             slice 0         slice 1           slice 2
 *
 * For any placement of ranks, each of h hosts sends 2(h-1)/h S bytes for an allreduce, the least
 * possible, and at most S bytes for a broadcast. Cost: the lane's algorithm for S / lanes bytes,
 * plus two passes of the window. With slices, only the first and last pass overlap no messages.
 *
 * If a dtype is narrower than its accumulator, results are rounded twice, on the host and on the
 * lane. With unit roundoff u, the error is at most 2u (|x1| + ... + |xp|) / divisor, instead of u
 * times that sum. */
#include "collectives/hosts.h"

#include "collectives/costs.h"

void coll_hosts_cut(const struct layout *l, size_t bytes, size_t element, size_t *end) {
    for (int i = 0; i < l->host.size; i++)
        end[i] = i < l->lanes ? coll_chunk(bytes, element, l->lanes, i).end : bytes;
}

int coll_hosts_sum(const struct layout *l, const struct coll_args *args, const size_t *end,
                   size_t longest, hvd_error *err) {
    struct coll_args host = *args;
    host.kind = HVD_REDUCESCATTER;
    host.in = args->data;
    host.data = (char *)args->data + coll_part(end, l->host.rank).begin;
    host.in_end = end;
    host.longest = longest;
    host.final = coll_final_on_host(args);
    return coll_run(&l->host, &host, err);
}

static struct coll_args lane_args(const struct coll_args *args) {
    struct coll_args lane = *args;
    lane.prescale = 1;
    lane.final = coll_final_on_lane(args);
    return lane;
}

int coll_hosts_lane(const struct layout *l, const struct coll_args *args, hvd_error *err) {
    struct coll_args lane = lane_args(args);
    return coll_run(&l->lane, &lane, err);
}

int coll_hosts_slices(const struct layout *l, const struct coll_args *args,
                      const struct coll_slices *slices, hvd_error *err) {
    struct coll_args lane = lane_args(args);
    bool ring = args->reduce->wide == args->reduce->size;
    HVD_TRY(slices->prepare(slices->arg, 0, err));
    if (l->lane.size)
        return (ring ? coll_ring_slices : coll_pairwise_slices)(&l->lane, &lane, slices, err);
    for (size_t i = 0; i < slices->n; i++) {
        if (i + 1 < slices->n) HVD_TRY(slices->prepare(slices->arg, i + 1, err));
        if (slices->finish) HVD_TRY(slices->finish(slices->arg, i, err));
    }
    return HVD_OK;
}

static int sum_on_lane(const struct layout *l, const struct coll_args *args, struct coll_range own,
                       hvd_error *err) {
    if (!l->lane.size) return HVD_OK;
    struct coll_args lane = *args;
    lane.data = (char *)args->data + own.begin;
    lane.bytes = coll_length(own);
    return coll_hosts_lane(l, &lane, err);
}

int coll_hosts_gather(const struct layout *l, const struct coll_args *args, const void *in,
                      void *out, const size_t *end, size_t longest, hvd_error *err) {
    struct coll_args host = {.kind = HVD_ALLGATHER,
                             .data = out,
                             .bytes = end[l->host.size - 1],
                             .in = in,
                             .part_end = end,
                             .longest = longest,
                             .scratch = args->scratch};
    return coll_run(&l->host, &host, err);
}

/* Gathers the chunks. Each rank already has its chunk at the final place in the data. */
static int gather_chunks(const struct layout *l, const struct coll_args *args, const size_t *end,
                         size_t longest, hvd_error *err) {
    const char *own = (char *)args->data + coll_part(end, l->host.rank).begin;
    return coll_hosts_gather(l, args, own, args->data, end, longest, err);
}

/* ---- allreduce in slices ---- */

struct by_slices {
    const struct layout *l;
    /* for the steps on the host; has its own scratch, because other steps use the caller's */
    struct coll_args args;
    size_t slice; /* bytes of a slice */
    size_t *end;  /* by local rank: end of the rank's chunk of the current slice */
};

static struct coll_args cut_slice(const struct by_slices *b, size_t i) {
    struct coll_range range = coll_segment((struct coll_range){0, b->args.bytes}, b->slice, i);
    struct coll_args args = b->args;
    args.data = (char *)args.data + range.begin;
    args.bytes = coll_length(range);
    coll_hosts_cut(b->l, args.bytes, args.reduce->size, b->end);
    return args;
}

/* Returns a chunk of slice i for the ring of this rank's lane (one rank of each host). */
static struct coll_range lane_chunk(const void *arg, size_t i, int chunk) {
    const struct by_slices *b = arg;
    cut_slice(b, i);
    struct coll_range own = coll_part(b->end, b->l->host.rank);
    struct coll_range lane = {i * b->slice + own.begin, i * b->slice + own.end};
    return coll_cut(lane, b->args.reduce->size, b->l->hosts, chunk);
}

static int sum_slice(const void *arg, size_t i, hvd_error *err) {
    const struct by_slices *b = arg;
    struct coll_args args = cut_slice(b, i);
    return coll_hosts_sum(b->l, &args, b->end, coll_length(coll_part(b->end, 0)), err);
}

static int gather_slice(const void *arg, size_t i, hvd_error *err) {
    const struct by_slices *b = arg;
    struct coll_args args = cut_slice(b, i);
    return gather_chunks(b->l, &args, b->end, coll_length(coll_part(b->end, 0)), err);
}

/* Returns half of the bytes in flight, so that half of these bytes is on the links while the hosts
 * work on the other half. */
size_t coll_hosts_chunk(const struct comm *comm) {
    struct pace pace = comm_pace(comm);
    return (pace.depth + 1) / 2 * pace.segment;
}

static int run_slices(const struct comm *comm, const struct coll_args *args, size_t *end,
                      size_t slice, hvd_error *err) {
    struct scratch scratch = {0};
    struct by_slices b = {.l = comm->layout, .args = *args, .slice = slice, .end = end};
    struct coll_slices slices = {.n = coll_segments(args->bytes, slice),
                                 .chunk = lane_chunk,
                                 .prepare = sum_slice,
                                 .finish = gather_slice,
                                 .arg = &b,
                                 .longest_chunk = coll_hosts_chunk(comm)};
    b.args.scratch = &scratch;
    int code = coll_hosts_slices(b.l, args, &slices, err);
    scratch_free(&scratch);
    return code;
}

/* Returns true if a ring is the cheapest algorithm between hosts (on a lane). The result is equal
 * on all ranks, even on ranks in no lane. */
bool coll_hosts_in_slices(const struct comm *comm, const struct reduce_kernels *kernels,
                          size_t bytes) {
    int hosts = comm->layout->hosts;
    struct comm lane = {.transport = comm->transport, .size = hosts, .hosts = hosts};
    return coll_cheapest(&lane, kernels, bytes) == COLL_RING;
}

static bool in_slices(const struct comm *comm, const struct coll_args *args, size_t slice) {
    size_t lanes = (size_t)comm->layout->lanes;
    return args->bytes >= 2 * slice && coll_hosts_in_slices(comm, args->reduce, slice / lanes);
}

int coll_hosts_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct layout *l = comm->layout;
    size_t slice = coll_hosts_chunk(comm) * (size_t)(l->hosts * l->lanes);
    void *memory;
    HVD_TRY(scratch_get(args->outer, (size_t)l->host.size * sizeof(size_t), &memory, err));
    size_t *end = memory;
    if (in_slices(comm, args, slice)) return run_slices(comm, args, end, slice, err);
    coll_hosts_cut(l, args->bytes, args->reduce->size, end);
    size_t longest = coll_length(coll_part(end, 0));
    HVD_TRY(coll_hosts_sum(l, args, end, longest, err));
    HVD_TRY(sum_on_lane(l, args, coll_part(end, l->host.rank), err));
    return gather_chunks(l, args, end, longest, err);
}

static int broadcast_on(const struct comm *comm, const struct coll_args *args, int root,
                        hvd_error *err) {
    struct coll_tensor whole = {.in = args->data, .out = args->data, .bytes = args->bytes};
    struct coll_args part = *args;
    part.tensors = &whole;
    part.ntensors = 1;
    part.root = root;
    return coll_run(comm, &part, err);
}

/* Lane l has local rank l of each host. If the root is in no lane, its host broadcasts first, and
 * then lane 0 broadcasts between the hosts. */
int coll_hosts_broadcast(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct layout *l = comm->layout;
    int root_host = l->host_of[args->root], root = l->local_of[args->root];
    bool first = root >= l->lanes, on_root_host = l->host_of[comm->rank] == root_host;
    int lane = first ? 0 : root;
    if (on_root_host && first) HVD_TRY(broadcast_on(&l->host, args, root, err));
    if (l->host.rank == lane) HVD_TRY(broadcast_on(&l->lane, args, root_host, err));
    return on_root_host && first ? HVD_OK : broadcast_on(&l->host, args, lane, err);
}
