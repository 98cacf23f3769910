/* Which MPI this is, and whether it is ready for a job.
 *
 * Only mpi_library_revoke sends anything. */
#ifndef HVDLITE_TRANSPORT_MPI_LIBRARY_H
#define HVDLITE_TRANSPORT_MPI_LIBRARY_H

#include "base/error.h"

#include <stddef.h>

/* Fails unless MPI is initialised and may be called by the engine's thread. */
int mpi_library_check(hvd_error *err);

/* The lowest rank of the communicator whose handle lies at `comm` that MPI knows to be dead; -1:
 * none, or this MPI does not tell (Open MPI 5 under `mpirun --with-ft ulfm` does). */
int mpi_library_dead_rank(const void *comm);

/* Ends every call on the communicator whose handle lies at `comm`, on all its ranks, with an error:
 * else a rank would wait in one for a rank that has given up. Does nothing where this MPI can't, or
 * for MPI_COMM_NULL. */
void mpi_library_revoke(const void *comm);

/* "Open MPI 5.0.11": the MPI compiled for; the MPI linked to. Both work before MPI is
 * initialised. */
void mpi_library_built_for(char *text, size_t size);
void mpi_library_loaded(char *text, size_t size);

#endif
