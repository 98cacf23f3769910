/* The core's transports: processes connected by streams, and the threads of C tests. A transport
 * that needs another library has its own header, such as transport_mpi.h.
 *
 * The caller closes a transport with transport_close; a hub owns local transports. */
#ifndef HVDLITE_TRANSPORT_TRANSPORTS_H
#define HVDLITE_TRANSPORT_TRANSPORTS_H

#include "transport/transport.h"

/* ---- ranks as processes connected by streams: transport_tcp.c ----
 *
 * The caller provides connected stream sockets, TCP or other. If all ranks share a window, messages
 * go through mailboxes and a rank sleeps on its doorbell, as in transport_mpi. Otherwise a waiting
 * rank sleeps until it can read or write a stream. */

/* cdef begin */
/* Connected stream sockets to the other ranks of the job. */
typedef struct hvd_sockets {
    int rank, size;
    const int *lowest; /* by rank: the lowest rank of the same host */
    const int *data;   /* by rank: descriptor of the stream for data; -1 at index `rank` */
    /* by rank: descriptor of the stream for negotiation messages; if this stream ends without a
     * farewell message, the other rank has died */
    const int *messages;
} hvd_sockets;

/* A group, which uses the job's streams. */
typedef struct hvd_socket_group {
    int size;
    int number; /* > 0, equal on all ranks of the group and new in this job */
} hvd_socket_group;

/* where: for the job an hvd_sockets *, for a group an hvd_socket_group *. The transport uses
 * duplicates of the sockets, so the caller may close the sockets after the call. */
transport_opener transport_tcp_open;
/* cdef end */

/* ---- ranks as threads of one process, for the C tests: transport_local.c ----
 *
 * A hub has the transports of all ranks. Sends copy the data and complete immediately, in order.
 * Tests can inject faults that MPI rarely shows. */

struct local_hub;

/* per_host: number of consecutive ranks that count as one host; 0: all ranks. Returns NULL if
 * memory is short. */
struct local_hub *local_hub_new(int size, int per_host);
/* lowest: array by rank, the lowest rank of the rank's host. */
struct local_hub *local_hub_on(int size, const int *lowest);
void local_hub_free(struct local_hub *hub); /* call it after every rank's thread has ended */

/* Gives the ranks of each host a window. Call it before the ranks start. False: memory is short. */
bool local_hub_share(struct local_hub *hub);

/* Returns the transport of one rank; the hub owns it. */
struct transport *local_hub_rank(struct local_hub *hub, int rank);

/* From now on every data transfer of this rank fails with HVD_TRANSPORT. Any thread. */
void local_hub_break(struct local_hub *hub, int rank);

#endif
