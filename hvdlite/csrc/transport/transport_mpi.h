/* Ranks as MPI processes, and the only file that calls MPI.
 *
 * It is a library of its own, one for each MPI: hvdlite's core is loaded without MPI and gets
 * transport_mpi_open as an argument. What this file uses of the layers below is in both libraries;
 * these layers have no state outside of what a transport owns.
 *
 * Standard MPI-3 only. It works on duplicates of the given communicator, so its messages never meet
 * the program's. MPI must be initialised with MPI_THREAD_MULTIPLE, as mpi4py does; SERIALIZED is
 * enough if no other thread calls MPI. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_MPI_H
#define HVDLITE_TRANSPORT_TRANSPORT_MPI_H

#include "transport/transport.h"

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

#endif
