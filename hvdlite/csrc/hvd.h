/* The public C interface of hvdlite. A process belongs to one job at a time. The caller submits
 * tensors and learns when they complete.
 *
 * Python sees the declarations between the markers, through cffi. A function that can fail returns
 * an hvd_code and fills *err. Any thread may call any function. In a forked child every
 * call that needs the job fails, except hvd_where. */
#ifndef HVDLITE_HVD_H
#define HVDLITE_HVD_H

#include "base/error.h"
#include "base/types.h"

/* cdef begin */
/* One tensor to communicate. hvd_start copies everything except the arrays `in`, `out`, `residual`
 * and those of `update`. */
typedef struct hvd_tensor {
    const char *name; /* UTF-8, less than HVD_MAX_NAME bytes; equal on all ranks */
    /* The call as the user made it, equal on all ranks: "reduce, root 1". For calls that kind,
     * dtype, op and root do not describe; otherwise NULL. A longer text is cut. */
    const char *call;
    int kind;  /* an hvd_kind */
    int dtype; /* an hvd_dtype */
    int op;    /* an hvd_op; for allreduce and reducescatter */
    /* a rank of the group. broadcast: the root; send, recv: the other rank (-1: any) */
    int root;
    int group; /* number of the group; 0: all ranks of the job */
    /* among tensors that are ready, the tensor with the highest priority runs first */
    int priority;
    double prescale, postscale; /* allreduce, reducescatter: op(x * prescale) * postscale */
    int ndim;
    const int64_t *dims;
    const void *in;
    /* allreduce, broadcast: as large as `in`; may be `in`. join: one int64, which receives the rank
     * that joined last; the tensor's name must be "join". Other kinds: out_rows rows. */
    void *out;
    /* allgather: the sum of all ranks' first dimensions. reducescatter: the rows of this rank's
     * part; if rows can't be split evenly, the first parts have one row more. alltoall: the rows
     * that this rank receives. */
    int64_t out_rows;
    /* 1: the out_rows of an allgather or alltoall is a guess. If the guess is wrong or `out` is
     * NULL, the handle owns the output; see hvd_result. */
    int open;
    /* alltoall: splits[r] rows of `in` go to rank r, in the order of ranks; any rows left over are
     * not sent. NULL: each rank gets the same number of rows. */
    const int64_t *splits;
    size_t nsplits; /* length of `splits`; 0 if it is NULL */
    /* 1: an alltoall without splits, in which `in` lists the addresses of the parts for the ranks,
     * and `out` lists where to store their parts. This rank's own part is not copied. */
    int listed;
    int codec; /* an hvd_codec; only for an allreduce of float32 */
    /* NULL: this rank has data. Otherwise: why this rank has no data; every rank's error shows this
     * text */
    const char *failed;
    /* The number of tensors in a grouped call, equal on all ranks; their names end in [0], [1], ...
     * 0: the tensor is not in a grouped call. */
    int grouped;
    int waited; /* 1: the caller calls hvd_finish next; hvd_finish then runs the engine's steps */
    int last;   /* 1: this rank starts no other tensor until this tensor has ended */
    /* if a tensor of this name is under way: 1 waits until that tensor ends, 0 returns an error */
    int queued;
    /* Digest of the optimizer states loaded since the last step; 0: none loaded. Below 0: this rank
     * has also changed the optimizer's parameters, or the computation of their gradients. From
     * HVD_DIVISORS: this rank's step divides gradients by another number than its last step; the
     * number is a float whose bits, without sign and last bit, are the lower 30 bits. */
    int states;
    /* 1: hvdlite only negotiates the tensor; after the tensor completes without an error, another
     * library moves the data (see hvd_turn). HVD_ASKS: there is no data; hvdlite checks that every
     * rank submits this name with HVD_ASKS. If some ranks submit data instead, all ranks get an
     * error. In both cases `in` and `out` are unused. */
    int delegated;
    /* 2bit, 1bit: the codec's threshold; topk: the fraction of values that is sent */
    double parameter;
    /* 2bit, 1bit, topk: the residual, the part of the gradient that the codec left out, kept
     * between calls. As large as `in`; zeroed before the first call; used only during a call. */
    float *residual;
    /* For an allreduce of float32 in place. Before the tensor completes, the result updates the
     * weights; a host has one copy of the weights. Then `out` contains the result or the input. */
    const hvd_update *update;
} hvd_tensor;

/* A tensor under way. */
typedef struct hvd_handle hvd_handle;

/* Joins the job. Collective over its ranks. Reads HVDLITE_* and HOROVOD_*. */
int hvd_init(const hvd_transport *transport, hvd_error *err);

/* 1 between hvd_init and hvd_close, else 0. */
int hvd_is_initialized(void);
int hvd_where(hvd_topology *out, hvd_error *err);

/* Tells hvdlite that the launcher considers `host` lost: every wait for a rank of that host fails.
 * NULL: this rank leaves the job and waits for no other rank. */
void hvd_lose_host(const char *host);

/* Returns HVD_OK, or the first cause of the transport failure that ended the job. */
int hvd_check(hvd_error *err);

/* Returns the name of the algorithm of group 0's last collective; NULL: no collective has run, or
 * there is no job. */
const char *hvd_algorithm(void);

/* Checks the tensor as hvd_start does, but submits nothing. Another tensor of this name may be
 * under way. */
int hvd_validate(const hvd_tensor *tensor, hvd_error *err);

/* While a group is corked, its submitted tensors are held back; uncorking sends them to the other
 * ranks in one message. Uncork soon, because the other ranks wait for these tensors. */
void hvd_cork(int group, bool corked);

/* Submits the tensor. Returns NULL on failure: see *err. */
hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err);
/* Milliseconds. Python's waits return after this time and then wait again, so that Ctrl-C works. */
#define HVD_WAIT_MS 100
/* Waits for at most `seconds`. Returns 1 if the tensor is done: *err (err may be NULL) is HVD_OK or
 * the tensor's error. Returns 0 if it is not done. Any thread may call this any number of times,
 * even after hvd_close. */
int hvd_finish(hvd_handle *handle, double seconds, hvd_error *err);
/* Makes all present and later waits for the tensor return immediately, as if their time had run
 * out. The tensor stays under way, but soon an unmatched send or receive fails, and its late
 * counterpart, too. */
void hvd_give_up(hvd_handle *handle);
/* Prepares a tensor once, as a plan that can run many times. Returns NULL on failure: see *err. */
hvd_handle *hvd_plan(const hvd_tensor *tensor, hvd_error *err);
/* Returns true if the plan can run this tensor: both have the same group, call, kind, dtype, op,
 * scales, root, dims, out_rows and open. The caller makes sure that the other fields, such as the
 * name, are the same. */
bool hvd_plan_fits(const hvd_handle *plan, const hvd_tensor *tensor);
/* Runs a plan from `in` to `out` and waits for at most `seconds`; if `seconds` < 0, only starts the
 * plan. Returns 1: done without an error. Returns 0: call hvd_finish. 0 also means that the output
 * of an open tensor did not fit; such a plan can't run again. Call from one thread at a time, after
 * the last run is done. */
int hvd_run(hvd_handle *plan, const void *in, void *out, double seconds);
/* Calls watcher(arg) once when the tensor is done: immediately if it is done already, else on the
 * thread that completes it. That thread also moves other tensors, so the watcher must return soon.
 * At most one watcher per handle. */
void hvd_watch(hvd_handle *handle, void (*watcher)(void *arg), void *arg);
/* Returns the output of an open tensor that has finished without an error, and the number of rows
 * from each rank. The handle owns both. NULL: the output did fit into the caller's memory. */
void *hvd_result(hvd_handle *handle, const int64_t **rows);
/* Call it after a delegated tensor, which another library moves, has finished without an error.
 * Returns the tensor's turn, equal on all ranks: 1 for the group's first delegated tensor, 2 for
 * the second, ... If all ranks must make a library's calls in one order, use the order of turns. */
uint64_t hvd_turn(const hvd_handle *handle);
/* Returns the turn of the last tensor of the same batch. The tensors of a batch have consecutive
 * turns, and one call of the library may move all of them. */
uint64_t hvd_last_turn(const hvd_handle *handle);
/* For a receive that has finished without an error: returns the rank that sent the data. */
int hvd_source(hvd_handle *handle);
/* Frees the handle; its tensor may still be under way. */
void hvd_drop(hvd_handle *handle);

/* This rank's work since hvd_init, in all groups. Bytes count tensors, not negotiation. */
typedef struct hvd_stats {
    uint64_t bytes_sent_network; /* sent to other ranks by the transport */
    uint64_t bytes_sent_window;  /* written to shared memory for other ranks of this host */
    /* numbers of tensors and batches that finished without an error; fused tensors are one batch */
    uint64_t tensors, batches;
} hvd_stats;
int hvd_get_stats(hvd_stats *out, hvd_error *err);

/* Makes memory of this rank that the other ranks of its host can map. `bytes`: a multiple of the
 * page size. After all ranks have joined their regions, an in-place allreduce at the same offset on
 * every rank copies nothing. A page uses no memory until it is written. NULL: see *err;
 * HVD_UNSUPPORTED: the ranks can't share memory. */
typedef struct hvd_region hvd_region;
hvd_region *hvd_region_create(size_t bytes, hvd_error *err);
void *hvd_region_memory(hvd_region *region); /* zeroed */
/* Returns the address that the other ranks pass to hvd_region_join to map the first `used` bytes.
 * Moves these bytes to large pages if possible. */
void hvd_region_address(hvd_region *region, uint64_t used, char address[HVD_REGION_ADDRESS]);
/* Maps the regions of the other ranks of the host; all regions must have the same size.
 * addresses[i] and used[i] belong to local rank i. id: not 0, equal on all ranks. Call it once;
 * after a failure nothing has changed. */
int hvd_region_join(hvd_region *region, int id, const char *const *addresses, const uint64_t *used,
                    hvd_error *err);
void hvd_region_close(hvd_region *region); /* no tensor of the region may be under way */

/* Memory that exists once per host. The lowest rank of the host makes it, the other ranks attach
 * it. Each rank maps it twice. Writes to the shared mapping reach all ranks. The view shows the
 * same bytes, but a page of the view that this rank writes becomes private. NULL: see *err;
 * HVD_UNSUPPORTED: the ranks can't share memory. */
typedef struct host_memory hvd_memory;
/* If `address` is NULL, makes the memory; otherwise attaches memory that another rank made. */
hvd_memory *hvd_memory_open(size_t bytes, const char *address, hvd_error *err);
/* Returns the address with which other ranks attach the memory. */
void hvd_memory_address(hvd_memory *memory, char address[HVD_REGION_ADDRESS]);
/* Moves the memory to large pages if possible, except pages that no rank has written to yet. */
void hvd_memory_collapse(hvd_memory *memory);
void *hvd_memory_shared(hvd_memory *memory);
void *hvd_memory_view(hvd_memory *memory);
void hvd_memory_close(hvd_memory *memory);
/* Returns the lowest rank of this rank's host, the host's number (hosts are numbered in the order
 * of their lowest ranks) and the number of hosts. */
int hvd_host(int *leader, int *number, int *hosts, hvd_error *err);

/* The flight recorder (shm/flight.h) is a file without a name; the file begins with
 * hvd_flight_format and a semicolon. hvd_flight_file returns the file's descriptor; -1: no
 * recorder. hvd_flight_describe stores three values: a text that all ranks of the job share, the
 * name of the transport between hosts, and the signal that appends stacks to the file (0: none).
 * After hvd_flight_bell, each stall or failure writes `word` to the descriptor `bell`; bell = -1
 * ends this. */
extern const char hvd_flight_format[];
int hvd_flight_file(void);
void hvd_flight_describe(const char *job, const char *transport, int stacks);
void hvd_flight_bell(int bell, const char *word);
/* For the recorder and the timeline: rank 0's clock is `offset` seconds ahead of this rank's clock,
 * with an uncertainty of `error` seconds. `about`: JSON members for the head of the timeline. */
void hvd_set_clock(double offset, double error, const char *about);
/* For the recorder and the timeline: records work of this rank alone, such as "update". Times are
 * of the monotonic clock. */
void hvd_note(const char *what, double begin, double end);
/* hvd_stacks_keep_users remembers the user's handler of the signal. hvd_stacks_install then
 * installs a new handler over the present handler. The new handler appends the C stack of its
 * thread to the file, then calls both older handlers. Call each function once; never close the
 * file. */
void hvd_stacks_keep_users(int number);
void hvd_stacks_install(int number, int file);

/* Starts a timeline, a file in the Trace Event Format that shows when each tensor was submitted,
 * agreed on and moved. {rank} in `path` becomes the rank; without {rank} only rank 0 writes a
 * file. */
int hvd_timeline_start(const char *path, int mark_cycles, hvd_error *err);
int hvd_timeline_stop(hvd_error *err);

/* Opens a group, a set of ranks of the job with its own numbering. Collective over the group's
 * ranks. `ranks`: the members' ranks in the job, in the group's order. *group: the group's number
 * in this process. */
int hvd_group_open(const hvd_transport *transport, const int *ranks, int *group, hvd_error *err);
/* End a group, or the job with all its groups, in three steps: hvd_leave tells the other ranks that
 * this rank submits nothing more, and the reason. hvd_wait_end waits until every rank has left
 * (returns 1) or `seconds` have passed (returns 0). hvd_group_close and hvd_close free
 * everything. */
#define HVD_ALL_GROUPS -1
void hvd_leave(int group, const char *reason);
int hvd_wait_end(int group, double seconds);
void hvd_group_close(int group);
void hvd_close(void);

/* Keeps a copy of the error. Appends to the text of the error: hvd_error_mark, a hash of the text
 * as eight hexadecimal digits, and "]". */
extern const char hvd_error_mark[];
void hvd_keep_failure(hvd_error *err);
/* Copies the kept error of this hash. Returns false if the error is not kept any more. */
bool hvd_kept_failure(uint32_t hash, hvd_error *out);

/* Sets a limit: after `seconds` this process prints `message` and exits with `code`, even if it is
 * blocked, unless hvd_limit_lift has been called. `ranks`: the ranks of the job for which the
 * caller waits inside MPI; only the limit can end this wait. If there are such ranks, the job
 * checks that they answer, and the seconds count from the failure or the end of the job. Returns
 * NULL if memory is short. hvd_limit_lift(NULL) does nothing. */
typedef struct hvd_limit hvd_limit;
hvd_limit *hvd_limit_set(double seconds, const int *ranks, int nranks, int code,
                         const char *message);
void hvd_limit_lift(hvd_limit *limit);

/* For a child that was forked from a process with MPI. hvd_end_child_with stores the exit code;
 * hvd_end_child ends the child at Python's exit, without C's exit functions, because these belong
 * to the parent. */
void hvd_end_child_with(int code);
void hvd_end_child(void);
/* cdef end */

struct tensor;
/* For C callers that keep the tensor until it completes: checks `from` and fills in `to`. After a
 * success the caller sets to->complete and the addresses that `from` lacks. The caller later frees
 * to->splits and to->why, which are copies. */
int hvd_prepare(const hvd_tensor *from, struct tensor *to, hvd_error *err);

/* Submits a prepared tensor to the group, like engine_submit. */
int hvd_submit(int group, struct tensor *tensor, hvd_error *err);

#endif
