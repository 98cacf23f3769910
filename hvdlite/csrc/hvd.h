/* The public C interface of hvdlite: one job a process, tensors in, completions out.
 *
 * Python sees what lies between the markers, through cffi. A function that can fail returns an
 * hvd_code and fills *err. Any thread may call any function. In a child forked later all calls
 * fail. */
#ifndef HVDLITE_HVD_H
#define HVDLITE_HVD_H

#include "base/error.h"
#include "base/types.h"

/* cdef begin */
/* One tensor to communicate. hvd_start copies it, except the memory of `in`, `out` and
 * `residual`. */
typedef struct hvd_tensor {
    const char *name; /* UTF-8, under HVD_MAX_NAME bytes; pairs the tensor across ranks */
    int kind;         /* hvd_kind */
    int dtype;        /* hvd_dtype */
    int op;           /* hvd_op; allreduce, reducescatter */
    int root;         /* rank of the group; broadcast; send, recv: the other, recv: -1: any */
    int group;        /* of ranks; 0: the whole job */
    int priority;     /* higher goes first among tensors that are ready */
    double prescale, postscale; /* allreduce, reducescatter: op(x * prescale) * postscale */
    int ndim;
    const int64_t *dims;
    const void *in;
    /* allreduce, broadcast: as large as `in`, and may be `in`. join, whose name is "join": one
     * int64, the rank that joined last. Other kinds: out_rows rows. */
    void *out;
    /* allgather: the sum of all ranks' first dimensions. reducescatter: the rows of this rank's
     * part; the first parts may have one row more. alltoall: the rows that this rank receives. */
    int64_t out_rows;
    /* 1: an allgather's or alltoall's out_rows is a guess. If it is wrong, or `out` is NULL, the
     * output is memory of the handle's; see hvd_result. */
    int open;
    /* alltoall: [to]: rows for that rank, in the order in which they lie in `in`; rows left over
     * are not sent. NULL: equally many for each of n ranks. */
    const int64_t *splits;
    size_t nsplits;     /* n; 0: NULL */
    int codec;          /* hvd_codec; an allreduce of float32 may have one */
    const char *failed; /* why this rank has no data, for the error of every rank; NULL: it has */
    /* Of a grouped call: how many tensors it has, which must be equal on all ranks; their names end
     * in [0], [1], ... 0: it is alone. */
    int grouped;
    int waited; /* 1: the caller calls hvd_finish at once, which does the engine's work */
    int last;   /* 1: this rank starts no other before its end: else what waits for it fails */
    int queued; /* 1: waits behind one of its name that is under way; 0: that is an error */
    /* 2bit, 1bit: the codec's threshold; topk: the ratio of the values that are sent */
    double parameter;
    /* 2bit, 1bit, topk: what the codec left out, carried from call to call. As large as `in`,
     * zeroed before the first call, used only during the call. */
    float *residual;
    /* An allreduce of float32 in place may have one. Its result updates the weights, which exist
     * once on a host, then the tensor completes; `out` keeps the result or what it was before. */
    const hvd_update *update;
} hvd_tensor;

/* A tensor under way. */
typedef struct hvd_handle hvd_handle;

/* Collective over the communicator. Reads HVDLITE_*, HOROVOD_*. */
int hvd_init(const hvd_by_mpi *mpi, hvd_error *err);

/* The same by sockets, which are hvd's from the call on, also if it fails. Needs no MPI. */
int hvd_init_sockets(const hvd_sockets *sockets, hvd_error *err);

/* 1 between hvd_init and hvd_close, else 0. */
int hvd_is_initialized(void);
int hvd_where(hvd_topology *out, hvd_error *err);

/* The launcher or the watch takes this host for lost: all that wait for its ranks fail. */
void hvd_lose_host(const char *host);

/* HVD_OK, or the first cause of the transport failure that ended the job. */
int hvd_check(hvd_error *err);

/* The algorithm of the last collective of group 0; NULL: there was none, or there is no job. */
const char *hvd_algorithm(void);

/* Refuses what hvd_start would refuse, except a name that is under way. Submits nothing. */
int hvd_validate(const hvd_tensor *tensor, hvd_error *err);

/* Tensors submitted to a corked group reach the other ranks in one message. Cork for moments. */
void hvd_cork(int group, bool corked);

/* Submits the tensor. NULL: see *err. */
hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err);
/* Waits at most `seconds`. 1: the tensor is done, *err (err may be NULL) tells how (HVD_OK: well).
 * 0: not yet. Any threads, any number of times, also after hvd_close. */
int hvd_finish(hvd_handle *handle, double seconds, hvd_error *err);
/* Ends all waits for the tensor, also later ones, as if their seconds had passed. It goes on. */
void hvd_give_up(hvd_handle *handle);
/* A tensor that comes again: prepared once, not submitted yet. NULL: see *err. */
hvd_handle *hvd_plan(const hvd_tensor *tensor, hvd_error *err);
/* Submits a plan from `in` to `out`, and waits at most `seconds`. 1: it is done, and well. 0: see
 * hvd_finish; or an open one has its output elsewhere, and can't be run again. One thread at a
 * time, and only when the last run is done. */
int hvd_run(hvd_handle *plan, const void *in, void *out, double seconds);
/* Calls watcher(arg) once when the tensor is done: at once, or on the thread that completes it,
 * which moves other tensors, so the watcher must return soon. At most once a handle. */
void hvd_watch(hvd_handle *handle, void (*watcher)(void *arg), void *arg);
/* Of an open tensor that hvd_finish has found well: its output, and how many of the rows came from
 * each rank. Both are the handle's, but for an output of the caller's that fits. Else NULL. */
void *hvd_result(hvd_handle *handle, const int64_t **rows);
/* The rank that a receive which has ended well came from. */
int hvd_source(hvd_handle *handle);
/* The last call with the handle; its tensor may be under way. */
void hvd_drop(hvd_handle *handle);

/* What this rank has done since hvd_init, in all groups. Bytes of tensors, without negotiation. */
typedef struct hvd_stats {
    uint64_t bytes_sent_mpi;    /* given to MPI for other ranks */
    uint64_t bytes_sent_window; /* put into shared memory for other ranks of this host */
    uint64_t tensors, batches;  /* done without an error; fused tensors are one batch */
} hvd_stats;
int hvd_get_stats(hvd_stats *out, hvd_error *err);

/* Memory of this rank that the other ranks of its host can map. Once all ranks have joined their
 * regions, an allreduce in place at the same offset on every rank copies nothing. NULL: see *err;
 * HVD_UNSUPPORTED where ranks share no memory. A page costs nothing until it is written to. */
typedef struct hvd_region hvd_region;
#define HVD_REGION_ADDRESS 64
hvd_region *hvd_region_create(size_t bytes, hvd_error *err);
void *hvd_region_memory(hvd_region *region); /* zeroed */
/* By which other ranks join the first `used` bytes. Moves these to large pages where it can. */
void hvd_region_address(hvd_region *region, uint64_t used, char address[HVD_REGION_ADDRESS]);
/* Maps the regions of the other ranks, all as large as this one; addresses[i] and used[i] are those
 * of local rank i. The id: not 0, the same on all ranks. Once; a failure changes nothing. */
int hvd_region_join(hvd_region *region, int id, const char *const *addresses, const uint64_t *used,
                    hvd_error *err);
void hvd_region_close(hvd_region *region); /* no tensor may be under way in it */

/* Memory that exists once on a host. Its lowest rank makes it, the host's other ranks attach it.
 * Each sees it twice: what it writes to the shared mapping all see; the view shows the same bytes
 * until it writes to the view, whose pages then are its own. NULL: see *err; HVD_UNSUPPORTED where
 * ranks of a host share no memory. */
typedef struct host_memory hvd_memory;
hvd_memory *hvd_memory_open(size_t bytes, const char *address, hvd_error *err); /* NULL: makes it */
/* By which other ranks attach it. Moves it to large pages where it can. */
void hvd_memory_address(hvd_memory *memory, char address[HVD_REGION_ADDRESS]);
void *hvd_memory_shared(hvd_memory *memory);
void *hvd_memory_view(hvd_memory *memory);
void hvd_memory_close(hvd_memory *memory);
/* This rank's host: its lowest rank; its number among the hosts, which are in the order of their
 * lowest ranks; how many hosts the job has. */
int hvd_host(int *leader, int *number, int *hosts, hvd_error *err);

/* The flight recorder (shm/flight.h): a file of this process without a name; -1: there is none.
 * `job`: what its ranks have in common. `transport`: what carries data between hosts. `stacks`: the
 * signal by which stacks are appended to the file; 0: none. With each stall or failure `word` is
 * written to `bell`; -1: no more. */
int hvd_flight_file(void);
void hvd_flight_describe(const char *job, const char *transport, int stacks);
void hvd_flight_bell(int bell, const char *word);
/* For the recorder and the timeline: rank 0's clock is ahead of this rank's by `offset` seconds,
 * `error` more or less. `about`: members of a JSON object, for the head of the timeline. */
void hvd_set_clock(double offset, double error, const char *about);
/* For both as well: what this rank did alone, as "update"; times of the monotonic clock. */
void hvd_note(const char *what, double begin, double end);
/* Remembers the signal's handler; then installs one over the handler of now (base/stacks.h). */
void hvd_stacks_keep_users(int number);
void hvd_stacks_install(int number, int file);

/* Starts a file in the Trace Event Format: when each tensor was submitted, agreed on and moved.
 * {rank} in `path` becomes the rank; without {rank} only rank 0 writes. */
int hvd_timeline_start(const char *path, int mark_cycles, hvd_error *err);
int hvd_timeline_stop(hvd_error *err);

/* Opens a group: some ranks of the job, numbered anew. Collective over their communicator. `ranks`:
 * their ranks in the job, for error texts. *group is the group's number in this process. MPI must
 * allow calls from several threads. */
int hvd_group_open(const hvd_by_mpi *mpi, const int *ranks, int *group, hvd_error *err);
/* The same in a job by sockets, called by these ranks only, which are in the group's order.
 * `number` is over 0, equal on all of them and new in this job. */
int hvd_group_open_among(const int *ranks, int size, int number, int *group, hvd_error *err);
/* End a group, or the job with all its groups, in three steps: this rank submits nothing any more,
 * for that reason; wait until every rank has left (1) or the seconds have passed (0); free
 * everything. */
#define HVD_ALL_GROUPS -1
void hvd_leave(int group, const char *reason);
int hvd_wait_end(int group, double seconds);
void hvd_group_close(int group);
void hvd_close(void);

/* Prints the words and ends this process with the code after so many seconds, whatever it waits
 * for, unless the limit is lifted. `ranks`, of a job, are those that it waits for in MPI, which
 * nothing ends: it is seen meanwhile that they answer, and the seconds begin when the job has
 * failed. NULL: no memory for it; that does nothing when it is lifted. */
typedef struct hvd_limit hvd_limit;
hvd_limit *hvd_limit_set(double seconds, const int *ranks, int nranks, int code, const char *words);
void hvd_limit_lift(hvd_limit *limit);

/* Ends a child that was forked from a process with MPI, with the exit code that was given before.
 * C's exit functions, which belong to the parent, do not run. Python's end calls it. */
void hvd_end_child_with(int code);
void hvd_end_child(void);
/* cdef end */

struct tensor;
/* For C callers that keep the tensor until it completes: checks `from` and fills in `to`. The
 * caller frees to->splits and to->why, copies, unless this fails. The caller then sets the
 * completion, and memory that was not known before. */
int hvd_prepare(const hvd_tensor *from, struct tensor *to, hvd_error *err);

/* Submits a prepared tensor to the group; see engine_submit. */
int hvd_submit(int group, struct tensor *tensor, hvd_error *err);

#endif
