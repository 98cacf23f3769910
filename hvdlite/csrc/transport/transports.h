/* The three transports, and how each is opened. Only job.c knows which one a group uses.
 *
 * The caller closes what it opens by transport_close; the hub of local transports owns them. */
#ifndef HVDLITE_TRANSPORT_TRANSPORTS_H
#define HVDLITE_TRANSPORT_TRANSPORTS_H

#include "transport/transport.h"

/* ---- ranks as MPI processes: transport_mpi.c, the only file that calls MPI ----
 *
 * It is a library of its own, one for each MPI: hvdlite's core is loaded without MPI and gets
 * transport_mpi_open as an argument. What this file uses of the layers below is in both libraries;
 * these layers have no state outside of what a transport owns.
 *
 * Standard MPI-3 only. It works on duplicates of the given communicator, so its messages never meet
 * the program's. MPI must be initialised with MPI_THREAD_MULTIPLE, as mpi4py does; SERIALIZED is
 * enough if no other thread calls MPI. */

/* cdef begin */
struct transport;
/* Collective over the communicator whose handle (an MPI_Comm) is at `comm`. If `window`, the ranks
 * of one host share a window if they can; without a window all data goes through MPI. If `nudge`,
 * messages through MPI wake their receiver. job_ranks: as in struct transport. */
typedef int transport_mpi_opener(struct transport **out, const void *comm, const int *job_ranks,
                                 bool window, bool nudge, hvd_error *err);
transport_mpi_opener transport_mpi_open;

/* "Open MPI 5.0.11": the MPI compiled for; the MPI linked to. Both work before MPI is
 * initialised. */
void transport_mpi_built_for(char *text, size_t size);
void transport_mpi_loaded(char *text, size_t size);
/* cdef end */

/* ---- ranks as processes joined by streams: transport_tcp.c ----
 *
 * The caller provides connected stream sockets, TCP or other. If all ranks share a window, messages
 * pass through mailboxes and a rank sleeps on its doorbell, as in transport_mpi. Else a waiting
 * rank sleeps until a stream can be read or written. */

/* Collective. Owns the descriptors from now on, also if it fails. If `window`, the ranks of one
 * host share a window if they can. timeout: seconds until a wait for another rank fails; 0:
 * never. */
int transport_tcp_open(struct transport **out, const hvd_sockets *sockets, bool window,
                       double timeout, hvd_error *err);

/* Collective over `ranks`: opens the transport of a group in the job whose transport is `job`;
 * close `job` last. number: > 0, the same on all these ranks and new in this job. */
int transport_tcp_open_among(struct transport **out, struct transport *job, const int *ranks,
                             int size, int number, bool window, hvd_error *err);

/* ---- ranks as threads of one process, for the C tests: transport_local.c ----
 *
 * One hub has the transports of all ranks. Sends are copied and complete at once, in order. Tests
 * can inject a fault, which MPI rarely shows on demand. */

struct local_hub;

/* per_host: consecutive ranks that count as one host; 0: all ranks. NULL: no memory. */
struct local_hub *local_hub_new(int size, int per_host);
/* lowest: [rank]: the lowest rank of its host. */
struct local_hub *local_hub_on(int size, const int *lowest);
void local_hub_free(struct local_hub *hub); /* after every rank's thread has ended */

/* Gives the ranks of each host a window, before they start. False: no memory. */
bool local_hub_share(struct local_hub *hub);

/* The transport of one rank; the hub owns it. */
struct transport *local_hub_rank(struct local_hub *hub, int rank);

/* From now on every data transfer of this rank fails with HVD_TRANSPORT. Any thread. */
void local_hub_break(struct local_hub *hub, int rank);

#endif
