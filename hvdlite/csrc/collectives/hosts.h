/* Shared by the collectives by hosts: the steps on each level, and which level scales a result.
 *
 * The host applies the prescale. It also divides dtypes that are narrower than their accumulators,
 * so that a host's sum does not overflow if the average does not. The lane applies the rest. */
#ifndef HVDLITE_COLLECTIVES_HOSTS_H
#define HVDLITE_COLLECTIVES_HOSTS_H

#include "collectives/coll.h"
#include "transport/comm.h"

static inline bool coll_divides_on_host(const struct coll_args *args) {
    return args->reduce->wide > args->reduce->size;
}

/* The bytes of a chunk of a ring between hosts, for large data; see hosts.c. */
size_t coll_hosts_chunk(const struct comm *comm);

/* True: pieces of `bytes` on each lane keep the links busy. */
bool coll_hosts_in_pieces(const struct comm *comm, const struct reduce_kernels *kernels,
                          size_t bytes);

/* The lane's ranks, each with its host's sum, add over the hosts. */
int coll_hosts_lane(const struct layout *l, const struct coll_args *args, hvd_error *err);
/* coll_hosts_lane in pieces. Also prepares the first piece. A rank in no lane prepares and
 * finishes its pieces in the same order. */
int coll_hosts_pieces(const struct layout *l, const struct coll_args *args,
                      const struct coll_pieces *pieces, hvd_error *err);

/* Where each local rank's chunk of the data ends; ranks in no lane have empty chunks. */
void coll_hosts_cut(const struct layout *l, size_t bytes, size_t element, size_t *end);

/* The host's ranks sum the data in place, each rank its chunk. longest: bytes of the longest
 * chunk. */
int coll_hosts_sum(const struct layout *l, const struct coll_args *args, const size_t *end,
                   size_t longest, hvd_error *err);

/* The host's ranks gather the parts that they have at `in`. end: [local rank]: end of the rank's
 * part in `out`; longest: bytes of the longest part. */
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
