/* In place of transport_mpi.c in a library without MPI. */
#include "transport/transport_mpi.h"

#include <stdio.h>

int transport_mpi_open(struct transport **out, const void *comm, const int *job_ranks, bool window,
                       bool nudge, hvd_error *err) {
    (void)out, (void)comm, (void)job_ranks, (void)window, (void)nudge;
    return error_set(
        err, HVD_UNSUPPORTED,
        "this library of hvdlite was built without MPI: its jobs are joined by sockets");
}

void transport_mpi_built_for(char *text, size_t size) { snprintf(text, size, "no MPI"); }

void transport_mpi_loaded(char *text, size_t size) { snprintf(text, size, "no MPI"); }
