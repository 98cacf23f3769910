/* The three transports and the functions that open them. Only job/lifecycle.c knows which transport
 * a job uses.
 *
 * The caller closes a transport with transport_close; a hub owns local transports. */
#ifndef HVDLITE_TRANSPORT_TRANSPORTS_H
#define HVDLITE_TRANSPORT_TRANSPORTS_H

#include "transport/transport.h"

/* ---- ranks as MPI processes: transport_mpi.c, the only file that calls MPI ----
 *
 * The MPI transport is a separate library, one for each MPI, because the core is loaded without MPI
 * and gets transport_mpi_open from its caller. The core and this library each contain the code of
 * the lower layers; this is safe because these layers keep all state in a transport.
 *
 * This transport uses only standard MPI-3. It duplicates the given communicator, so its messages
 * never mix with the program's messages. MPI must be initialized with MPI_THREAD_MULTIPLE, as
 * mpi4py does; MPI_THREAD_SERIALIZED is enough if no other thread calls MPI. */

/* cdef begin */
/* where: an MPI_Comm *, the communicator of these ranks. */
transport_opener transport_mpi_open;

/* Write the name of an MPI ("Open MPI 5.0.11"): the MPI that the library was compiled for, and the
 * MPI that is loaded. Both work before MPI is initialized. */
void transport_mpi_built_for(char *text, size_t size);
void transport_mpi_loaded(char *text, size_t size);
/* cdef end */

/* ---- ranks as processes connected by streams: transport_tcp.c ----
 *
 * The caller provides connected stream sockets, TCP or other. If all ranks share a window, messages
 * go through mailboxes and a rank sleeps on its doorbell, as in transport_mpi. Otherwise a waiting
 * rank sleeps until it can read or write a stream. */

/* Opens the job's transport. where: an hvd_sockets *; the transport owns the descriptors from now
 * on, even if the call fails. */
transport_opener transport_tcp_open;

struct tcp_group {
    int size;
    int number; /* > 0, equal on all ranks of the group and new in this job */
};
/* Opens a group's transport, which uses the job's streams. where: a struct tcp_group *. */
transport_opener transport_tcp_open_among;

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
