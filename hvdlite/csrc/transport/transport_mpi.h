/* The transport between MPI processes. transport_mpi.c is the only file that calls MPI.
 *
 * The MPI transport is a separate library, one for each MPI, because the core is loaded without MPI
 * and gets transport_mpi_open from its caller. The core and this library each contain the code of
 * the lower layers; this is safe because these layers keep all state in a transport.
 *
 * This transport uses only standard MPI-3. It duplicates the given communicator, so its messages
 * never mix with the program's messages. MPI must be initialized with MPI_THREAD_MULTIPLE, as
 * mpi4py does; MPI_THREAD_SERIALIZED is enough if no other thread calls MPI and the job opens no
 * group. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_MPI_H
#define HVDLITE_TRANSPORT_TRANSPORT_MPI_H

#include "transport/transport.h"

/* cdef begin */
/* where: an MPI_Comm *, the communicator of the ranks of the job or group. */
transport_opener transport_mpi_open;

/* Write the name of an MPI ("Open MPI 5.0.11"): the MPI that the library was compiled for, and the
 * MPI that is loaded. Both work before MPI is initialized. */
void transport_mpi_built_for(char *text, size_t size);
void transport_mpi_loaded(char *text, size_t size);
/* cdef end */

#endif
