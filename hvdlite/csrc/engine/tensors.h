/* The tensor table: the tensors that this rank has submitted and that are not complete.
 *
 * Any thread submits; only the engine's stepping thread takes, finds and finishes tensors. One lock
 * guards the table; completions are called without it. The table links the callers' tensors instead
 * of copying them, because 500 small tensors under way are more than a core's cache holds. */
#ifndef HVDLITE_ENGINE_TENSORS_H
#define HVDLITE_ENGINE_TENSORS_H

#include "base/map.h"
#include "base/os.h"
#include "negotiation/request.h"
#include "shm/shmem.h"

#include <stdatomic.h>

/* The stepping thread calls it exactly once, with NULL or the error, unless the submission failed.
 * After this call the engine uses neither the tensor's memory nor `arg`. */
typedef void tensor_complete(void *arg, const hvd_error *error);

/* NEW: not reported to the coordinator. SAID: reported, waits for the decision. AGREED: in a batch,
 * until it finishes. */
enum tensor_stage { TENSOR_NEW, TENSOR_SAID, TENSOR_AGREED };

struct tensor {
    const void *in; /* request_bytes() bytes */
    void *out; /* allreduce, broadcast: as large as `in`, may be `in`; other kinds: out_rows rows */
    int64_t out_rows;
    /* Ranges of weights for host_memory_settle, which this rank calls when all ranks have submitted
     * the tensor: from then on no rank reads the weights. */
    const struct host_range *views;
    size_t nviews;
    hvd_update update; /* allreduce: the update, if request.rule names one */
    /* the codec's residual, as many values as `in`; used only during submission */
    float *residual;
    void *message; /* the encoded `in`; the table frees it; NULL: no codec */
    /* alltoall: by rank, how many rows the rank gets; NULL: the same number for each rank */
    const int64_t *splits;
    size_t nsplits;  /* length of `splits`; 0 if it is NULL */
    const char *why; /* why this rank has no data, for the error text; NULL: no reason given */
    bool open;       /* true: out_rows is a guess; see tensor_fit_output */
    bool listed;     /* alltoall: `in` and `out` are lists of addresses; see hvd_tensor */
    /* memory from tensor_fit_output: each rank's rows, then the output; the caller owns it */
    void *made;
    tensor_complete *complete;
    void *arg;
    const struct region *region; /* the region numbered request.region; NULL: none */
    double submitted;            /* time of the submission, by clock_now */
    bool queued;                 /* true: the tensor may wait behind another tensor with its name */
    /* true: all waits end immediately, and a send or receive without a match is withdrawn; see
     * hvd_give_up. Any thread sets it. */
    atomic_bool given_up;
    uint64_t turn, last_turn; /* results of hvd_turn and hvd_last_turn */
    /* Only the stepping thread uses the following fields. */
    /* true: zeros for a rank that has joined; the table owns this tensor */
    bool zeros;
    enum tensor_stage stage; /* how far the negotiation has progressed */
    /* bytes that are already in batches; for a send or receive: bytes sent, received or read */
    size_t agreed;
    uint64_t flight; /* number of the tensor's operation in the flight recorder; 0: none */
    /* true: the tensor has the same offset in its region on every rank; send: the data goes through
     * a bounce buffer */
    bool direct;
    bool uneven;           /* true: some rank has chosen its own splits */
    struct p2p_near *near; /* recv from a rank of this host: where to read the sender's data */
    double met;            /* send, recv: when the other rank's tensor matched, by clock_now */
    /* Set when the ranks have agreed; the table frees it. If the ranks' numbers of rows may differ,
     * these numbers; for a join, the last rank that joined. */
    int64_t *rows;
    struct map_node node; /* node in the map of names */
    /* The table sets the following fields, except for sends and receives (p2p.h). */
    /* The cache id that this rank has sent to the coordinator; 0: it has sent the whole request.
     * For a send or receive: the number that the sender has given to the send. */
    uint64_t id;
    struct map_node by_id;
    struct tensor *newer, *older; /* neighbors in the table's list */
    /* the next tensor of the same name, which waits until this tensor ends */
    struct tensor *behind;
    /* in the first tensor with its name: the last tensor that waits behind it; none: itself */
    struct tensor *last;
    struct request request; /* last field, because the number of its bytes in use varies */
};

struct tensor_list {
    struct tensor *oldest, *newest;
};

/* Appends linked tensors to the list; the first is `tensor`, the last is `last`. */
void tensor_list_add(struct tensor_list *list, struct tensor *tensor, struct tensor *last);
void tensor_list_remove(struct tensor_list *list, struct tensor *tensor);

/* Fits the output to the rows from n ranks: received[rank * stride] rows from a rank. If they do
 * not fill the caller's output, allocates memory for the n numbers of rows and for the output if
 * `open` is set, and fails otherwise. */
int tensor_fit_output(struct tensor *tensor, const int64_t *received, size_t stride, size_t n,
                      hvd_error *err);

struct tensors;
struct comm;

struct tensors *tensors_new(void);    /* NULL: memory is short */
void tensors_free(struct tensors *t); /* call it when all callers' tensors have ended */

/* Checks what request_check does not see: the update, the splits, a reducescatter's out_rows. */
int tensor_check(const struct tensor *tensor, int rank, int size, hvd_error *err);
/* Encodes the tensor if it has a codec. If tensors_add would fail, leaves the residual unchanged.
 * Runs on the caller's thread, because the stepping thread is busy moving data; the rank's helper
 * threads share the work unless an engine uses them. */
int tensors_encode(struct tensors *t, const struct comm *comm, struct tensor *tensor,
                   hvd_error *err);

/* Sets the error that a tensor with this name is already under way on this rank. */
int tensor_duplicate(const struct tensor *tensor, hvd_error *err);

/* Any thread. tensor->node must be set. The table keeps the tensor until its completion is called;
 * after an error the caller keeps it. Fails after tensors_refuse. Fails if a tensor with this name
 * is under way, with two exceptions: `queued` is set, or the operator of the tensor under way has
 * failed, so no caller waits for that tensor. In both cases the new tensor waits behind it.
 * *corked: set to true if tensors_cork holds the tensor back. */
int tensors_add(struct tensors *t, struct tensor *tensor, bool *corked, hvd_error *err);
size_t tensors_count(struct tensors *t); /* number of tensors added and not finished */
/* For the stepping thread. Returns tensors_count, and the name of the oldest taken tensor, if there
 * is one. */
size_t tensors_oldest(struct tensors *t, char name[HVD_MAX_NAME]);

/* While corked, tensors_take returns NULL, until tensors_refuse. Any thread; calls nest. */
void tensors_cork(struct tensors *t, bool corked);

/* For the stepping thread. Returns the tensors added since the last call, linked by `newer`, the
 * oldest first. NULL: none. */
struct tensor *tensors_take(struct tensors *t);
struct tensor *tensors_find(struct tensors *t, const char *name); /* NULL: not found */
struct tensor *tensors_find_id(struct tensors *t, uint64_t id);   /* NULL: not found */
/* Stores the cache id that this rank sends to the coordinator; 0: it sends the whole request. */
int tensors_set_id(struct tensors *t, struct tensor *tensor, uint64_t id, hvd_error *err);

/* For the stepping thread of a rank that has joined. Adds a tensor of zeros in place of a tensor
 * that only other ranks have; tensors_finish frees the zeros. */
int tensors_add_zeros(struct tensors *t, const struct request *request, struct tensor **out,
                      hvd_error *err);

/* Removes a taken tensor from the table and completes it with the error, or with NULL. */
void tensors_finish(struct tensors *t, struct tensor *tensor, const hvd_error *error);

/* Any thread. From now on submissions fail with the error of the first call; tensors in the table
 * stay there. */
void tensors_refuse(struct tensors *t, const hvd_error *error);

/* Calls tensors_refuse, then finishes all tensors with the error. */
void tensors_close(struct tensors *t, const hvd_error *error);

#endif
