/* The layout of a comm: which ranks share a host, and the comms of this host and of this lane.
 *
 * A lane crosses the hosts: lane l has the local rank l of every host. There are as many lanes as
 * the smallest host has ranks, so the last ranks of a larger host are in no lane. p = 5, ranks by
 * host; this rank is 3:
 *
 *            lane 0   lane 1
 *   host 0   0        2        4
 *   host 1   1        3                 comm of the host: 1 3, of the lane: 2 3
 *
 * Made once from the lowest rank of each rank's host, which every rank must know. */
#ifndef HVDLITE_TRANSPORT_LAYOUT_H
#define HVDLITE_TRANSPORT_LAYOUT_H

#include "base/types.h"
#include "transport/comm.h"

struct layout {
    int hosts; /* in the order of their lowest ranks */
    int lanes;
    int *host_of;     /* [rank] */
    int *local_of;    /* [rank]: its number among the ranks of its host, by rank */
    int *by_host;     /* [ranks]: the ranks, host by host */
    struct comm host; /* the ranks of this host */
    struct comm lane; /* the ranks of this rank's lane, by host; size 0: this rank is in none */
    bool windows;     /* every host has a window */
    int *memory;      /* of all these arrays */
};

/* Gives the comm, of all ranks of a transport, its layout. lowest: [comm->size], for each rank the
 * lowest rank of its host. */
int layout_open(struct layout *l, struct comm *comm, const int *lowest, hvd_error *err);
void layout_close(struct layout *l); /* also takes a zeroed layout */

hvd_topology layout_topology(const struct layout *l, const struct comm *comm);

#endif
