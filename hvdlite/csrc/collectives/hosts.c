/* Collectives by hosts: on each host through its window, between hosts along the lanes (layout.h).
 *
 *   Jain et al., "Framework for Scalable Intra-Node Collective Operations using Shared Memory",
 *   SC'18, and the two levels of Horovod's hierarchical allreduce.
 *
 * Allreduce. The data is cut into a chunk a lane. The ranks of a host sum chunk l to their rank in
 * lane l; the lane sums it over the hosts; the host gathers the chunks. p = 4, hosts {a, b} and
 * {c, d}, lanes {a, c} and {b, d}:
 *
 *            rank a           rank b           rank c           rank d
 *   start    a0 a1            b0 b1            c0 c1            d0 d1
 *   host     a0+b0            a1+b1            c0+d0            c1+d1
 *   lane     S0               S1               S0               S1
 *   host     S0 S1            S0 S1            S0 S1            S0 S1
 *
 * Broadcast: along the root's lane, then on the other hosts.
 *
 * However the ranks are placed, a host with h - 1 others sends 2(h-1)/h S bytes for an allreduce,
 * the fewest possible, and at most S for a broadcast. Cost: that of the lane's algorithm for S /
 * lanes bytes, and two passes of the window.
 *
 * A dtype narrower than its accumulator is rounded twice, on the host and on the lane: the error is
 * at most 2u (|x1| + ... + |xp|) / divisor, u its unit roundoff, instead of u. */
#include "collectives/hosts.h"

/* Where each local rank's chunk ends; ranks in no lane have empty chunks. */
static void cut(const struct layout *l, size_t bytes, size_t element, size_t *end) {
    for (int i = 0; i < l->host.size; i++)
        end[i] = i < l->lanes ? coll_chunk(bytes, element, l->lanes, i).end : bytes;
}

static int sum_on_host(const struct layout *l, const struct coll_args *args, const size_t *end,
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

static int sum_on_lane(const struct layout *l, const struct coll_args *args, struct coll_range own,
                       hvd_error *err) {
    if (!l->lane.size) return HVD_OK;
    struct coll_args lane = *args;
    lane.data = (char *)args->data + own.begin;
    lane.bytes = coll_length(own);
    lane.prescale = 1;
    lane.final = coll_final_on_lane(args);
    return coll_run(&l->lane, &lane, err);
}

static int gather_on_host(const struct layout *l, const struct coll_args *args, const size_t *end,
                          size_t longest, hvd_error *err) {
    struct coll_args host = {.kind = HVD_ALLGATHER,
                             .data = args->data,
                             .bytes = args->bytes,
                             .in = (char *)args->data + coll_part(end, l->host.rank).begin,
                             .part_end = end,
                             .longest = longest,
                             .scratch = args->scratch};
    return coll_run(&l->host, &host, err);
}

int coll_hosts_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct layout *l = comm->layout;
    void *memory;
    HVD_TRY(scratch_get(args->outer, (size_t)l->host.size * sizeof(size_t), &memory, err));
    size_t *end = memory;
    cut(l, args->bytes, args->reduce->size, end);
    size_t longest = coll_length(coll_part(end, 0));
    HVD_TRY(sum_on_host(l, args, end, longest, err));
    HVD_TRY(sum_on_lane(l, args, coll_part(end, l->host.rank), err));
    return gather_on_host(l, args, end, longest, err);
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

/* The root's host comes first if the root is in no lane: then lane 0 goes on. */
int coll_hosts_broadcast(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct layout *l = comm->layout;
    int root_host = l->host_of[args->root], root = l->local_of[args->root];
    bool first = root >= l->lanes, here = l->host_of[comm->rank] == root_host;
    int lane = first ? 0 : root;
    if (here && first) HVD_TRY(broadcast_on(&l->host, args, root, err));
    if (l->host.rank == lane) HVD_TRY(broadcast_on(&l->lane, args, root_host, err));
    return here && first ? HVD_OK : broadcast_on(&l->host, args, lane, err);
}
