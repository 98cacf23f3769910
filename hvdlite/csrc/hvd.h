/* The public C interface of hvdlite. A process is in one job; it submits tensors and learns when
 * they complete.
 *
 * Python sees the declarations between the markers, through cffi. A function that can fail returns
 * an hvd_code and fills *err. Any thread may call any function. In a forked child all calls
 * but hvd_where fail. */
#ifndef HVDLITE_HVD_H
#define HVDLITE_HVD_H

#include "base/error.h"
#include "base/types.h"

/* cdef begin */
/* One tensor to communicate. hvd_start copies it, except the memory of `in`, `out` and
 * `residual`. */
typedef struct hvd_tensor {
    const char *name; /* UTF-8, under HVD_MAX_NAME bytes; the same on all ranks */
    int kind;         /* hvd_kind */
    int dtype;        /* hvd_dtype */
    int op;           /* hvd_op, for allreduce and reducescatter */
    /* a rank of the group: a broadcast's root; the peer of a send or recv (-1: any peer) */
    int root;
    int group;    /* number of the group of ranks; 0: the whole job */
    int priority; /* of the ready tensors the one with the highest priority goes first */
    double prescale, postscale; /* allreduce, reducescatter: op(x * prescale) * postscale */
    int ndim;
    const int64_t *dims;
    const void *in;
    /* allreduce, broadcast: as large as `in`; may be `in`. join, which must be named "join": one
     * int64, the rank that joined last. Other kinds: out_rows rows. */
    void *out;
    /* allgather: the sum of all ranks' first dimensions. reducescatter: the rows of this rank's
     * part; the first parts may have one row more. alltoall: the rows that this rank receives. */
    int64_t out_rows;
    /* 1: an allgather's or alltoall's out_rows is a guess. If the guess is wrong, or `out` is NULL,
     * the handle has memory with the output; see hvd_result. */
    int open;
    /* alltoall: splits[r]: how many rows of `in` go to rank r, in order of ranks; further rows
     * are not sent. NULL: each rank gets equally many. */
    const int64_t *splits;
    size_t nsplits; /* length of `splits`; 0 if it is NULL */
    int codec;      /* hvd_codec; only for an allreduce of float32 */
    /* NULL: this rank has data; else why it has none, a text that every rank's error shows */
    const char *failed;
    /* The number of tensors in a grouped call, equal on all ranks; their names end in [0], [1], ...
     * 0: no grouped call. */
    int grouped;
    int waited; /* 1: the caller calls hvd_finish next, which steps the engine */
    int last;   /* 1: this rank starts no other tensor before this one ends */
    /* if a tensor of this name is under way, 1: waits until that tensor ends; 0: is an error */
    int queued;
    int states; /* digest of the optimizer states loaded since the last step; 0: none were loaded */
    /* 1: another library moves the data, after this call has completed without an error: hvdlite
     * only agrees on the tensor. `in` and `out` are not used. See hvd_turn. */
    int delegated;
    /* 2bit, 1bit: the codec's threshold; topk: the ratio of the values that are sent */
    double parameter;
    /* 2bit, 1bit, topk: the residual, the part that the codec left out, kept from call to call. As
     * large as `in`; zeroed before the first call; used only during the call. */
    float *residual;
    /* For an allreduce of float32 in place: its result updates the weights, which exist once on a
     * host, before the tensor completes. `out` then has the result or its old values. */
    const hvd_update *update;
} hvd_tensor;

/* A tensor under way. */
typedef struct hvd_handle hvd_handle;

/* Collective over the communicator. Reads HVDLITE_*, HOROVOD_*. */
int hvd_init(const hvd_by_mpi *mpi, hvd_error *err);

/* The same by sockets, without MPI. hvdlite owns the sockets from now on, also if the call
 * fails. */
int hvd_init_sockets(const hvd_sockets *sockets, hvd_error *err);

/* 1 between hvd_init and hvd_close, else 0. */
int hvd_is_initialized(void);
int hvd_where(hvd_topology *out, hvd_error *err);

/* Says that the launcher considers `host` lost: all waits for ranks of that host fail. NULL:
 * this rank leaves the job, and waits for no other rank. */
void hvd_lose_host(const char *host);

/* HVD_OK, or the first cause of the transport failure that ended the job. */
int hvd_check(hvd_error *err);

/* The algorithm of the last collective of group 0; NULL: there was none, or there is no job. */
const char *hvd_algorithm(void);

/* Fails as hvd_start would, but accepts the name of a tensor under way. Submits nothing. */
int hvd_validate(const hvd_tensor *tensor, hvd_error *err);

/* Tensors submitted to a corked group reach the other ranks in one message. Uncork soon. */
void hvd_cork(int group, bool corked);

/* Submits the tensor. NULL: see *err. */
hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err);
/* Waits at most `seconds`. Returns 1 if the tensor is done: *err (err may be NULL) is HVD_OK or
 * the tensor's error. Returns 0 if it is not done. Any thread may call it, any number of times,
 * also after hvd_close. */
int hvd_finish(hvd_handle *handle, double seconds, hvd_error *err);
/* Ends all present and later waits for the tensor as if their seconds had passed. The tensor
 * stays under way. */
void hvd_give_up(hvd_handle *handle);
/* A plan: a tensor that is prepared once and can be run many times. NULL: see *err. */
hvd_handle *hvd_plan(const hvd_tensor *tensor, hvd_error *err);
/* Runs a plan from `in` to `out` and waits at most `seconds`; below 0: only starts it. 1: done,
 * without an error. 0: call hvd_finish; or an open tensor's output did not fit, and the plan can't
 * be run again. One thread at a time, and only after the last run is done. */
int hvd_run(hvd_handle *plan, const void *in, void *out, double seconds);
/* Calls watcher(arg) once when the tensor is done: at once, or on the thread that completes the
 * tensor. That thread also moves other tensors, so the watcher must return soon. At most one
 * watcher a handle. */
void hvd_watch(hvd_handle *handle, void (*watcher)(void *arg), void *arg);
/* Returns the output of an open tensor that has finished without an error, and the number of
 * rows from each rank. Both belong to the handle. NULL: the output has fitted into the caller's
 * memory. */
void *hvd_result(hvd_handle *handle, const int64_t **rows);
/* Returns the turn of a delegated tensor that has finished without an error: 1 for the group's
 * first such tensor, 2 for the second, ... A tensor has the same turn on every rank. A library
 * whose calls must have the same order on all ranks makes them in the order of turns. */
uint64_t hvd_turn(const hvd_handle *handle);
/* Returns the sender, for a receive that has finished without an error. */
int hvd_source(hvd_handle *handle);
/* Frees the handle; its tensor may still be under way. */
void hvd_drop(hvd_handle *handle);

/* This rank's work since hvd_init, in all groups. Bytes of tensors, without negotiation. */
typedef struct hvd_stats {
    uint64_t bytes_sent_network; /* sent to other ranks by MPI or sockets */
    uint64_t bytes_sent_window;  /* written to shared memory for other ranks of this host */
    uint64_t tensors, batches;   /* finished without an error; fused tensors are one batch */
} hvd_stats;
int hvd_get_stats(hvd_stats *out, hvd_error *err);

/* Makes memory of this rank that the other ranks of its host can map. After all ranks have joined
 * their regions, an allreduce in place at the same offset on every rank copies nothing. NULL: see
 * *err; HVD_UNSUPPORTED: the ranks can't share memory. A page takes no memory until it is
 * written. */
typedef struct hvd_region hvd_region;
#define HVD_REGION_ADDRESS 64
hvd_region *hvd_region_create(size_t bytes, hvd_error *err);
void *hvd_region_memory(hvd_region *region); /* zeroed */
/* The address by which other ranks join the first `used` bytes. Moves these bytes to large pages
 * if it can. */
void hvd_region_address(hvd_region *region, uint64_t used, char address[HVD_REGION_ADDRESS]);
/* Maps the regions of the other ranks, all of this region's size; addresses[i] and used[i] come
 * from local rank i. id: not 0, the same on all ranks. Once; a failure changes nothing. */
int hvd_region_join(hvd_region *region, int id, const char *const *addresses, const uint64_t *used,
                    hvd_error *err);
void hvd_region_close(hvd_region *region); /* no tensor in the region may be under way */

/* Memory that exists once on a host: the host's lowest rank makes it, the other ranks attach it.
 * Each rank maps it twice. Writes to the shared mapping reach all ranks; the view shows the same
 * bytes, but a page that this rank writes there becomes private. NULL: see *err; HVD_UNSUPPORTED:
 * the ranks can't share memory. */
typedef struct host_memory hvd_memory;
hvd_memory *hvd_memory_open(size_t bytes, const char *address, hvd_error *err); /* NULL: makes it */
/* The address by which other ranks attach the memory. Moves the memory to large pages if it can. */
void hvd_memory_address(hvd_memory *memory, char address[HVD_REGION_ADDRESS]);
void *hvd_memory_shared(hvd_memory *memory);
void *hvd_memory_view(hvd_memory *memory);
void hvd_memory_close(hvd_memory *memory);
/* This rank's host: its lowest rank, its number (hosts are in the order of their lowest ranks), and
 * the number of hosts. */
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
/* For the recorder and the timeline: work of this rank alone, such as "update", with times of
 * the monotonic clock. */
void hvd_note(const char *what, double begin, double end);
/* hvd_stacks_keep_users remembers the user's handler of the signal. The other function installs
 * a handler over the present one. The new handler appends the C stack of its thread to the file,
 * then calls both older handlers. Call each function once; the file stays open for ever. */
void hvd_stacks_keep_users(int number);
void hvd_stacks_install(int number, int file);

/* Starts a timeline, a file in the Trace Event Format: when each tensor was submitted, agreed on
 * and moved. {rank} in `path` becomes the rank; without {rank} only rank 0 writes. */
int hvd_timeline_start(const char *path, int mark_cycles, hvd_error *err);
int hvd_timeline_stop(hvd_error *err);

/* Opens a group: some ranks of the job, with a new numbering. Collective over their communicator.
 * `ranks`: their ranks in the job, for error texts. *group: the group's number in this process. MPI
 * must allow calls from several threads. */
int hvd_group_open(const hvd_by_mpi *mpi, const int *ranks, int *group, hvd_error *err);
/* The same in a job by sockets; only the group's ranks call it. `ranks` are in the group's
 * order. number: > 0, equal on all these ranks, and not used before in this job. */
int hvd_group_open_among(const int *ranks, int size, int number, int *group, hvd_error *err);
/* End a group, or the job with all its groups, in three steps. leave: this rank submits nothing
 * more; `reason` says why. Wait until every rank has left (1) or the seconds have passed (0).
 * Free everything. */
#define HVD_ALL_GROUPS -1
void hvd_leave(int group, const char *reason);
int hvd_wait_end(int group, double seconds);
void hvd_group_close(int group);
void hvd_close(void);

/* Sets a limit: after so many seconds this process prints the words and exits with the code,
 * whatever it waits for, unless the limit is lifted. `ranks` of a job are those for which it
 * waits in MPI, a wait that nothing else ends: meanwhile the job checks that they answer, and
 * the seconds begin when the job has failed. Returns NULL without memory; lifting NULL does
 * nothing. */
typedef struct hvd_limit hvd_limit;
hvd_limit *hvd_limit_set(double seconds, const int *ranks, int nranks, int code, const char *words);
void hvd_limit_lift(hvd_limit *limit);

/* Ends a child that was forked from a process with MPI, with the exit code set before. The exit
 * functions of C, which belong to the parent, do not run. Called at Python's end. */
void hvd_end_child_with(int code);
void hvd_end_child(void);
/* cdef end */

struct tensor;
/* For C callers that keep the tensor until it completes: checks `from` and fills in `to`. If it
 * succeeds, the caller frees the copies to->splits and to->why, and sets the completion and memory
 * that was not known yet. */
int hvd_prepare(const hvd_tensor *from, struct tensor *to, hvd_error *err);

/* Submits a prepared tensor to the group; see engine_submit. */
int hvd_submit(int group, struct tensor *tensor, hvd_error *err);

#endif
