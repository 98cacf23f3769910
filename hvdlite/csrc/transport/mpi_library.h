/* Which MPI this is, and whether it is ready for a job.
 *
 * Calls no function of MPI that sends anything. */
#ifndef HVDLITE_TRANSPORT_MPI_LIBRARY_H
#define HVDLITE_TRANSPORT_MPI_LIBRARY_H

#include "base/error.h"

#include <stddef.h>

/* Fails unless MPI is initialised and may be called by the engine's thread. */
int mpi_library_check(hvd_error *err);

/* "Open MPI 5.0.11": the MPI compiled for; the MPI linked to. Both work before MPI is
 * initialised. */
void mpi_library_built_for(char *text, size_t size);
void mpi_library_loaded(char *text, size_t size);

#endif
