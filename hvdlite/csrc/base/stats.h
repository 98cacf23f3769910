/* Counts of what this rank has sent and done, in all its groups together.
 *
 * Engine threads count; any thread reads, and through the flight recorder other processes. */
#ifndef HVDLITE_BASE_STATS_H
#define HVDLITE_BASE_STATS_H

#include <stdatomic.h>
#include <stdint.h>

struct stats {
    _Atomic uint64_t bytes_sent_mpi;    /* of tensors, by transfers to other ranks */
    _Atomic uint64_t bytes_sent_window; /* of tensors, for other ranks of this host */
    _Atomic uint64_t tensors, batches;  /* done without an error */
    _Atomic uint64_t waited;            /* nanoseconds in which work waited for other ranks */
    _Atomic uint64_t waits_since;       /* nanoseconds of clock_now; 0: it does not wait now */
    _Atomic int32_t waits_for;          /* 1 + the rank of the job that a transfer needs; 0: none */
};

/* Work waits since then, by clock_now, for that rank of the job (-1: not known); and that wait has
 * ended. s NULL: nothing is counted. */
void stats_wait(struct stats *s, double since, int rank);
void stats_waited(struct stats *s, double since, double until);

#endif
