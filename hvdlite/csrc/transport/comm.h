/* A comm: a set of ranks, and how this rank reaches the others. Collectives know nothing else
 * about ranks.
 *
 * A comm numbers its ranks from 0. A transfer needs a send on one rank and a receive on the other;
 * the transfers of a pair of ranks match in order, across all comms. Only the thread that
 * steps the engine calls these functions. */
#ifndef HVDLITE_TRANSPORT_COMM_H
#define HVDLITE_TRANSPORT_COMM_H

#include "base/error.h"
#include "base/types.h"
#include "shm/helpers.h"
#include "shm/window.h"
#include "transport/pace.h"
#include "transport/wait.h"

struct transport;
struct layout;

struct comm {
    struct transport *transport; /* moves the bytes */
    int rank, size;              /* number of this rank; number of ranks */
    /* array of size: the ranks' numbers in the transport; NULL: the same numbers */
    const int *ranks;
    /* window of exactly these ranks, in this order; NULL: there is none */
    struct window *window;
    int hosts;                   /* number of hosts on which the ranks are */
    const struct layout *layout; /* NULL: all ranks are on one host, or each on its own */
};

/* A data transfer under way; a zeroed one is complete. */
struct transfer {
    uint64_t handle[2]; /* for the transport's own use */
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

/* The pace of the comm, equal on all ranks. */
struct pace comm_pace(const struct comm *comm);
struct cost comm_cost(const struct comm *comm);

/* Fails if `seconds`, the length of a wait for data of the transport's rank `peer`, exceed the
 * limit. */
int comm_check_wait(const struct transport *t, int peer, double seconds, hvd_error *err);
/* For a comm with a window: return when the rank, or all other ranks, have raised the flag for
 * the round. Both wait as comm_wait does. */
int comm_wait_flag(const struct comm *comm, int rank, enum window_flag flag, uint64_t round,
                   hvd_error *err);
int comm_wait_flags(const struct comm *comm, enum window_flag flag, uint64_t round, hvd_error *err);
/* Returns when this rank may overwrite its slot for the round: no rank reads the slot any more. */
int comm_wait_slot(const struct comm *comm, uint64_t round, hvd_error *err);

/* Threads that share this rank's large copies and sums; NULL: none. */
struct helpers *comm_helpers(const struct comm *comm);

/* Counts bytes that this rank has written for other ranks of its host. */
void comm_count_window(const struct comm *comm, size_t bytes);

/* ---- the layout of a comm: layout.c ----
 *
 * Which ranks share a host, and the comms of this host and of this lane. A lane crosses the hosts:
 * lane l has the local rank l of every host. There are as many lanes as the smallest host has
 * ranks, so the last ranks of a larger host are in no lane. p = 5, ranks by host; this rank is 3:
 *
 *            lane 0   lane 1
 *   host 0   0        2        4
 *   host 1   1        3                 comm of the host: 1 3, of the lane: 2 3
 *
 * Made once from the lowest rank of each rank's host, which every rank must know. */

struct layout {
    int hosts; /* number of hosts; they are ordered by their lowest ranks */
    int lanes;
    int *host_of;     /* by rank */
    int *local_of;    /* by rank: the rank's number among the ranks of its host */
    int *by_host;     /* array of ranks: the ranks, host by host */
    struct comm host; /* the ranks of this host */
    struct comm lane; /* the ranks of this rank's lane, by host; size 0: this rank is in no lane */
    bool windows;     /* every host has a window */
    int *memory;      /* holds all these arrays */
};

/* Gives the comm, of all ranks of a transport, its layout. lowest: [comm->size], for each rank the
 * lowest rank of its host. */
int layout_open(struct layout *l, struct comm *comm, const int *lowest, hvd_error *err);
void layout_close(struct layout *l); /* also takes a zeroed layout */

hvd_topology layout_topology(const struct layout *l, const struct comm *comm);

#endif
