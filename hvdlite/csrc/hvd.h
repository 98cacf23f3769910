/* The public C interface of hvdlite: one job a process, tensors in, completions out.
 *
 * What lies between the markers is also what Python sees, through cffi. A function that
 * can fail returns an hvd_code and fills *err. Any thread may call anything; the calls of a child
 * that was forked after hvd_init fail. */
#ifndef HVDLITE_HVD_H
#define HVDLITE_HVD_H

#include "base/error.h"
#include "base/types.h"

#include <stdbool.h>

/* cdef begin */
/* Where this process is in the job. A host is a shared-memory domain. */
typedef struct hvd_topology {
    int rank, size;             /* among all */
    int local_rank, local_size; /* on this host */
    int cross_rank, cross_size; /* among those with this local rank, one a host */
} hvd_topology;

/* One piece of work. Everything but the memory of `in`, `out` and `residual` is copied when it is
 * started. */
typedef struct hvd_tensor {
    const char *name;           /* UTF-8, under HVD_MAX_NAME bytes; pairs the tensor across ranks */
    int kind;                   /* hvd_kind */
    int dtype;                  /* hvd_dtype */
    int op;                     /* hvd_op; allreduce, reducescatter */
    int root;                   /* rank of the group; broadcast */
    int group;                  /* of ranks; 0: all of the job */
    int priority;               /* higher goes first among tensors that are ready */
    double prescale, postscale; /* the same: op(x * prescale) * postscale */
    int ndim;
    const int64_t *dims;
    const void *in;
    /* allreduce, broadcast: as large as `in`, may be the same; join: one int64, the last rank that has
     * joined; else out_rows rows */
    void *out;
    /* allgather: the sum of all ranks' first dimensions; reducescatter: this rank's part of it, the
     * first ones one row more; alltoall: the rows that come */
    int64_t out_rows;
    /* alltoall: [from * n + to]: rows for each of the n ranks, in the order in which they lie in `in`;
     * equal on all ranks */
    const int64_t *splits;
    size_t nsplits;   /* n * n; else 0 */
    int codec;        /* hvd_codec; an allreduce of float32 may have one */
    int failed;       /* 1: there is no data here, and the other ranks shall hear of it: an error */
    double parameter; /* of the codec: 2bit, 1bit: the threshold; topk: the ratio of what is sent */
    /* 2bit, 1bit, topk: what they left out, carried from one call to the next; as large as `in`, zeroed at
     * first; used during the call only */
    float *residual;
} hvd_tensor;

/* Work that somebody waits for. */
typedef struct hvd_handle hvd_handle;

/* Collective over the MPI communicator whose handle lies at `mpi_comm`. Reads HVDLITE_*, HOROVOD_*.
 */
int hvd_init(const void *mpi_comm, hvd_error *err);

/* 1 between hvd_init and hvd_close, else 0. */
int hvd_is_initialized(void);
int hvd_where(hvd_topology *out, hvd_error *err);

/* HVD_OK while the job is sound; after a transport failure its first cause. */
int hvd_check(hvd_error *err);

/* The algorithm of the last collective among all ranks; NULL: there was none, or no job. */
const char *hvd_algorithm(void);

/* What hvd_start would refuse at once, all but a name that is under way; nothing is submitted. */
int hvd_validate(const hvd_tensor *tensor, hvd_error *err);

/* Submits the tensor. The handle is to wait for; NULL: see *err. */
hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err);
/* 1: done, *err says how (code HVD_OK: well), and the handle is gone. 0: not done in that time. */
int hvd_finish(hvd_handle *handle, double seconds, hvd_error *err);

/* What this rank has done since hvd_init, in all groups. Bytes are those of tensors; the negotiation's
 * are not counted. */
typedef struct hvd_stats {
    uint64_t bytes_sent_mpi;    /* given to MPI for other ranks */
    uint64_t bytes_sent_window; /* put into shared memory for other ranks of this host */
    uint64_t tensors, batches;  /* done without an error; what was fused is one batch */
} hvd_stats;
int hvd_get_stats(hvd_stats *out, hvd_error *err);

/* Memory of this rank that the others of its host can map: what is reduced in place in it, at the same
 * offset on every rank, is not copied once all have joined their regions. NULL: see *err; ranks that do
 * not share memory: HVD_UNSUPPORTED. Pages cost nothing before they are written to. */
typedef struct hvd_region hvd_region;
#define HVD_REGION_ADDRESS 64
hvd_region *hvd_region_create(size_t bytes, hvd_error *err);
void *hvd_region_memory(hvd_region *region); /* zeroed */
/* What the others join its first `used` bytes by, which go on large pages where the kernel can. */
void hvd_region_address(hvd_region *region, uint64_t used, char address[HVD_REGION_ADDRESS]);
/* Maps what the others use of their regions, as large as this one: `used` bytes, by local rank, as are
 * the addresses. The id, not 0, is the same on all ranks. Once; a failure changes nothing. */
int hvd_region_join(hvd_region *region, int id, const char *const *addresses, const uint64_t *used,
                    hvd_error *err);
void hvd_region_close(hvd_region *region); /* nothing may be under way in it */

/* When each tensor was submitted, agreed on and moved, into a file of the Trace Event Format: `path` with
 * {rank} replaced by the rank; a path without it is written by rank 0 alone. */
int hvd_timeline_start(const char *path, int mark_cycles, hvd_error *err);
int hvd_timeline_stop(hvd_error *err);

/* A group is some ranks of the job, with a numbering of their own. Opening it is collective over the
 * MPI communicator whose handle lies at `mpi_comm`; ranks: their ranks in the job, for error texts.
 * The number that comes out is this process's own. MPI must allow calls from several threads. */
int hvd_group_open(const void *mpi_comm, const int *ranks, int *group, hvd_error *err);
/* Its end, as that of the job below. */
void hvd_group_leave(int group, const char *reason);
int hvd_group_wait_end(int group, double seconds);
void hvd_group_close(int group);

/* The end of the job with all its groups, in three steps: this rank submits nothing any more and says
 * why; wait until every rank has said so (1) or until the seconds have passed (0); free everything. */
void hvd_leave(const char *reason);
int hvd_wait_end(double seconds);
void hvd_close(void);

/* The MPI this library was compiled for, and the one it is linked to, as those call themselves. */
void hvd_mpi_built_for(char *text, size_t size);
void hvd_mpi_loaded(char *text, size_t size);
/* cdef end */

struct tensor;
/* In C, for a caller that keeps the tensor until it completes: writes it down as the engine takes it, and
 * checks it. Its splits are a copy, the caller's to free unless this fails. The caller sets what is left:
 * the completion, and memory that was not known yet. */
int hvd_prepare(const hvd_tensor *from, struct tensor *to, hvd_error *err);

/* Submits to the group what was prepared, see engine_submit. */
int hvd_submit(int group, struct tensor *tensor, hvd_error *err);

/* What is submitted to the group while it is corked is told to the other ranks together; for moments. */
void hvd_cork(int group, bool corked);

#endif
