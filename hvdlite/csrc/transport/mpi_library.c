#include "transport/mpi_library.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

int mpi_library_check(hvd_error *err) {
    int initialized = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&initialized);
    if (!initialized) return error_set(err, HVD_NOT_INITIALIZED, "import mpi4py.MPI first");
    MPI_Query_thread(&level);
    if (level >= MPI_THREAD_SERIALIZED) return HVD_OK;
    return error_set(err, HVD_UNSUPPORTED,
                     "MPI was initialised with MPI_THREAD_%s, and hvdlite's own thread needs "
                     "MPI_THREAD_MULTIPLE: set mpi4py.rc.thread_level = 'multiple' before "
                     "mpi4py.MPI is imported, or call MPI.Init_thread(MPI.THREAD_MULTIPLE)",
                     level == MPI_THREAD_SINGLE ? "SINGLE" : "FUNNELED");
}

#if defined(OMPI_MAJOR_VERSION)
/* Weak: versions before 5 lack it. */
extern int MPIX_Comm_get_failed(MPI_Comm comm, MPI_Group *failed) __attribute__((weak));

int mpi_library_dead_rank(const void *comm) {
    MPI_Comm handle;
    MPI_Group failed, all;
    int size = 0, first = 0, rank = -1;
    memcpy(&handle, comm, sizeof handle);
    if (!MPIX_Comm_get_failed || MPIX_Comm_get_failed(handle, &failed) != MPI_SUCCESS) return -1;
    MPI_Group_size(failed, &size);
    MPI_Comm_group(handle, &all);
    if (size) MPI_Group_translate_ranks(failed, 1, &first, all, &rank);
    MPI_Group_free(&all);
    MPI_Group_free(&failed);
    return rank;
}

extern int MPIX_Comm_revoke(MPI_Comm comm) __attribute__((weak));

void mpi_library_revoke(const void *comm) {
    MPI_Comm handle;
    memcpy(&handle, comm, sizeof handle);
    if (MPIX_Comm_revoke && handle != MPI_COMM_NULL) MPIX_Comm_revoke(handle);
}
#else
void mpi_library_revoke(const void *comm) { (void)comm; }

int mpi_library_dead_rank(const void *comm) {
    (void)comm;
    return -1;
}
#endif

void mpi_library_built_for(char *text, size_t size) {
#if defined(OMPI_MAJOR_VERSION)
    snprintf(text, size, "Open MPI %d.%d.%d", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
             OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
    snprintf(text, size, "MPICH %s", MPICH_VERSION);
#else
    snprintf(text, size, "MPI %d.%d", MPI_VERSION, MPI_SUBVERSION);
#endif
}

void mpi_library_loaded(char *text, size_t size) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    snprintf(text, size, "%.*s", (int)strcspn(version, "\n,"), version);
}
