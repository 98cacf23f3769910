/* Ranks as MPI processes: the transport of real jobs, and the only file that calls MPI.
 *
 * Standard MPI-3 only. It works on duplicates of the communicator that it is given, so
 * that its messages never meet the program's. MPI must have been initialised with
 * MPI_THREAD_MULTIPLE (or SERIALIZED, if no other thread calls MPI meanwhile): mpi4py does so. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_MPI_H
#define HVDLITE_TRANSPORT_TRANSPORT_MPI_H

#include "transport/transport.h"

/* Collective over the communicator, whose handle (an MPI_Comm) lies at `comm`. Ranks of one host share
 * a window, if `window` and if they can; without one everything goes through MPI. */
int transport_mpi_open(struct transport **out, const void *comm, bool window, hvd_error *err);

/* Collective: fails on every rank when `code`, with the error in *err, is not HVD_OK on some.
 * Before the engine starts: so that a rank that can't start does not leave the others waiting for
 * it. */
int transport_mpi_agree(struct transport *t, int code, hvd_error *err);

/* "Open MPI 5.0.11": the MPI that this file was compiled for, and the one that it is linked to in
 * this process, as that one calls itself. Both may be asked before MPI is initialised. */
void transport_mpi_built_for(char *text, size_t size);
void transport_mpi_loaded(char *text, size_t size);

#endif
