/* A comm: a set of ranks, and how this rank reaches the others. Collectives know ranks only as
 * members of a comm.
 *
 * A comm numbers its ranks from 0. A transfer needs a send on one rank and a receive on the other
 * rank. Between two ranks, sends and receives match in order, across all comms. Only the thread
 * that steps the engine calls these functions. */
#ifndef HVDLITE_TRANSPORT_COMM_H
#define HVDLITE_TRANSPORT_COMM_H

#include "base/error.h"
#include "base/types.h"
#include "shm/helpers.h"
#include "shm/window.h"
#include "transport/cost.h"
#include "transport/pace.h"
#include "transport/wait.h"

struct transport;
struct layout;

struct comm {
    struct transport *transport; /* moves the bytes */
    int rank, size;              /* this rank's number; the number of ranks */
    /* by rank: the rank's number in the transport; NULL: the same number */
    const int *ranks;
    /* window of exactly these ranks, in this order; NULL: none */
    struct window *window;
    int hosts; /* number of hosts with ranks of the comm */
    /* which ranks share a host; NULL: all ranks share one host, or each rank has its own host */
    const struct layout *layout;
};

/* A data transfer. If the struct is zeroed, the transfer is complete. */
struct transfer {
    uint64_t handle[2]; /* used by the transport only */
    int peer;           /* the other rank's number in the transport */
    bool active;
};

/* bytes <= 2^30: callers cut longer data into segments. The transfer owns the buffer until
 * comm_wait returns. */
int comm_isend(const struct comm *comm, const void *data, size_t bytes, int to, struct transfer *x,
               hvd_error *err);
int comm_irecv(const struct comm *comm, void *data, size_t bytes, int from, struct transfer *x,
               hvd_error *err);

/* Returns when the transfer is complete. Spins, then yields, then naps, as the transport's
 * `patience` says. `stream`: a waiter for a series of similar waits, which keeps the length of the
 * last wait; zeroed before the first wait. After an error the transfer may still be active, and the
 * comm is unusable. */
int comm_wait(const struct comm *comm, struct transfer *x, struct waiter *stream, hvd_error *err);

/* Returns the length and the number of segments in flight (pace.h), equal on all ranks. */
struct pace comm_pace(const struct comm *comm);
struct cost comm_cost(const struct comm *comm);

/* Fails if `seconds`, the length of a wait for data, exceed the limit. `peer`: the awaited rank, as
 * the transport numbers it. */
int comm_check_wait(const struct transport *t, int peer, double seconds, hvd_error *err);
/* Waits until the rank's flag in the window (shm/window.h) counts the round. comm_wait_flags waits
 * for the flags of all other ranks. */
int comm_wait_flag(const struct comm *comm, int rank, enum window_flag flag, uint64_t round,
                   hvd_error *err);
int comm_wait_flags(const struct comm *comm, enum window_flag flag, uint64_t round, hvd_error *err);
/* Waits until no rank reads old data in this rank's part of the window (slot) for the round. */
int comm_wait_slot(const struct comm *comm, uint64_t round, hvd_error *err);

/* Returns the threads that share this rank's large copies and sums; NULL: none. */
struct helpers *comm_helpers(const struct comm *comm);

/* Counts bytes that this rank has written for other ranks of its host. */
void comm_count_window(const struct comm *comm, size_t bytes);

/* ---- the layout of a comm: layout.c ----
 *
 * The layout says which ranks share a host, and has the comms of this rank's host and lane. A lane
 * crosses the hosts: lane l has the rank with local rank l of every host. There are as many lanes
 * as the smallest host has ranks, so the last ranks of a larger host are in no lane. Example: the
 * layout of rank 3 of 5 ranks:
 *
 *            lane 0   lane 1
 *   host 0   0        2        4
 *   host 1   1        3                 comm of the host: 1 3, comm of the lane: 2 3
 *
 * The layout is made once, from the lowest rank of each rank's host. */

struct layout {
    int hosts; /* number of hosts; hosts are in the order of their lowest ranks */
    int lanes;
    int *host_of;     /* array by rank */
    int *local_of;    /* array by rank: the rank's number among the ranks of its host */
    int *by_host;     /* array of all ranks, host by host */
    struct comm host; /* the ranks of this host */
    /* this rank's lane, one rank of each host, by host; size 0: this rank is in no lane */
    struct comm lane;
    bool windows; /* true: every host has a window */
    int *memory;  /* contains all arrays of this struct */
};

/* Makes the layout of a comm that has all ranks of a transport. lowest: by rank, the lowest rank of
 * the same host. */
int layout_open(struct layout *l, struct comm *comm, const int *lowest, hvd_error *err);
void layout_close(struct layout *l); /* a zeroed layout is allowed */

hvd_topology layout_topology(const struct layout *l, const struct comm *comm);

#endif
