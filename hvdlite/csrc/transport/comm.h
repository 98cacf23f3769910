/* A comm: a set of ranks and how this rank reaches the others. Collectives know no more than this.
 *
 * A comm numbers its ranks from 0. A transfer needs a send on one rank and a receive on the other;
 * the transfers of a pair of ranks match in order, across all comms. Only the engine's thread calls
 * these functions. */
#ifndef HVDLITE_TRANSPORT_COMM_H
#define HVDLITE_TRANSPORT_COMM_H

#include "base/error.h"
#include "shm/helpers.h"
#include "shm/window.h"
#include "transport/pace.h"
#include "transport/wait.h"

struct transport;
struct layout;

struct comm {
    struct transport *transport; /* moves the bytes */
    int rank, size;              /* this rank's number; how many ranks there are */
    const int *ranks;            /* [size]: their numbers in the transport; NULL: the same */
    struct window *window;       /* of exactly these ranks, in this order; NULL: none */
    int hosts;                   /* on which the ranks are */
    const struct layout *layout; /* NULL: all ranks are on one host, or each on its own */
};

/* A data transfer under way; a zeroed one is complete. */
struct transfer {
    uint64_t handle[2]; /* the transport's */
    int peer;           /* the transport's number of the other rank */
    bool active;
};

/* bytes <= 2^30: callers cut longer data into segments. The transfer owns the buffer until
 * comm_wait has returned. */
int comm_isend(const struct comm *comm, const void *data, size_t bytes, int to, struct transfer *x,
               hvd_error *err);
int comm_irecv(const struct comm *comm, void *data, size_t bytes, int from, struct transfer *x,
               hvd_error *err);

/* Returns when the transfer is complete. Spins, yields, then naps, by the transport's `patience`.
 * `stream` remembers the last wait of a series of similar waits; a zeroed one begins a series.
 * After an error the transfer may still be active, and the comm is unusable. */
int comm_wait(const struct comm *comm, struct transfer *x, struct waiter *stream, hvd_error *err);

/* Equal on all ranks. */
struct pace comm_pace(const struct comm *comm);
struct cost comm_cost(const struct comm *comm);

/* Fails if `seconds`, the length of a wait for data of the transport's rank `peer`, exceed the
 * limit. */
int comm_check_wait(const struct transport *t, int peer, double seconds, hvd_error *err);
/* On a window: return when the rank, or all other ranks, have raised the flag for the round. They
 * wait like comm_wait. */
int comm_wait_flag(const struct comm *comm, int rank, enum window_flag flag, uint64_t round,
                   hvd_error *err);
int comm_wait_flags(const struct comm *comm, enum window_flag flag, uint64_t round, hvd_error *err);
/* Returns when no rank reads this rank's slot any more, which the round will overwrite. */
int comm_wait_slot(const struct comm *comm, uint64_t round, hvd_error *err);

/* Threads that share this rank's large copies and sums; NULL: none. */
struct helpers *comm_helpers(const struct comm *comm);

/* Counts bytes that this rank has written for other ranks of its host. */
void comm_count_window(const struct comm *comm, size_t bytes);

#endif
