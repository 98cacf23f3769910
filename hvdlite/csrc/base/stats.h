/* Counts of what this rank has sent and done, in all its groups together.
 *
 * Engine threads count; any thread reads. */
#ifndef HVDLITE_BASE_STATS_H
#define HVDLITE_BASE_STATS_H

#include <stdatomic.h>
#include <stdint.h>

struct stats {
    _Atomic uint64_t bytes_sent_mpi;    /* of tensors, by transfers to other ranks */
    _Atomic uint64_t bytes_sent_window; /* of tensors, for other ranks of this host */
    _Atomic uint64_t tensors, batches;  /* done without an error */
};

#endif
