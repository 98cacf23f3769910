/* The steps that the collectives in two levels share.
 *
 * The step on the host applies the prescale. If a dtype is narrower than its accumulator, this step
 * also divides, because the sum of a host could overflow although the average does not. The step
 * between hosts, on a lane, applies the other factors. */
#ifndef HVDLITE_COLLECTIVES_HOSTS_H
#define HVDLITE_COLLECTIVES_HOSTS_H

#include "collectives/algorithm.h"
#include "transport/comm.h"

static inline bool coll_divides_on_host(const struct coll_args *args) {
    return args->reduce->wide > args->reduce->size;
}

/* Returns how many bytes a chunk has when large data goes around a ring between hosts. */
size_t coll_hosts_chunk(const struct comm *comm);

/* Returns whether slices keep the links busy if each host sends `bytes` per lane (comm.h). */
bool coll_hosts_in_slices(const struct comm *comm, const struct reduce_kernels *kernels,
                          size_t bytes);

/* Allreduces over the ranks of a lane: one rank of each host, which has the sum of its host. */
int coll_hosts_lane(const struct layout *l, const struct coll_args *args, hvd_error *err);
/* Like coll_hosts_lane, in slices; also prepares the first slice. A rank that sends nothing to
 * other hosts, because it is in no lane, prepares and finishes its slices in the same order. */
int coll_hosts_slices(const struct layout *l, const struct coll_args *args,
                      const struct coll_slices *slices, hvd_error *err);

/* Stores the end of each local rank's chunk of the data; ranks in no lane have empty chunks. */
void coll_hosts_cut(const struct layout *l, size_t bytes, size_t element, size_t *end);

/* Sums the data over the ranks of the host, in place; each rank sums its chunk. longest: bytes of
 * the longest chunk. */
int coll_hosts_sum(const struct layout *l, const struct coll_args *args, const size_t *end,
                   size_t longest, hvd_error *err);

/* Gathers the parts that the ranks of the host have at `in`. end[i]: where the part of local rank i
 * ends in `out`, in bytes; longest: bytes of the longest part. */
int coll_hosts_gather(const struct layout *l, const struct coll_args *args, const void *in,
                      void *out, const size_t *end, size_t longest, hvd_error *err);

static inline struct reduce_final coll_final_on_host(const struct coll_args *args) {
    return (struct reduce_final){1, coll_divides_on_host(args) ? args->final.divisor : 1};
}

static inline struct reduce_final coll_final_on_lane(const struct coll_args *args) {
    return (struct reduce_final){args->final.scale,
                                 coll_divides_on_host(args) ? 1 : args->final.divisor};
}

#endif
