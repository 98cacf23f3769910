/* The tensor table: the tensors that this rank has submitted and that are not complete.
 *
 * Any thread submits; the engine thread takes, finds and finishes. One lock guards the table's
 * members; no completion is called under it. Tensors are not copied: 500 small gradients in flight
 * exceed a core's cache, so each is written once. */
#ifndef HVDLITE_ENGINE_TENSORS_H
#define HVDLITE_ENGINE_TENSORS_H

#include "base/map.h"
#include "base/sync.h"
#include "negotiation/request.h"
#include "shm/shmem.h"

/* The stepping thread calls it exactly once, with NULL or the error; never if the submission fails.
 * After the call the engine uses neither the tensor's memory nor `arg`. */
typedef void tensor_complete(void *arg, const hvd_error *error);

/* Not reported yet; reported, waits for the decision; in a batch until it finishes. */
enum tensor_stage { TENSOR_NEW, TENSOR_SAID, TENSOR_AGREED };

struct tensor {
    const void *in; /* request_bytes() bytes */
    void *out; /* allreduce, broadcast: as many bytes as `in`, may be `in`; else out_rows rows */
    int64_t out_rows;
    /* Weights' ranges that this rank settles once all ranks have submitted and none reads them. */
    const struct host_range *views;
    size_t nviews;
    hvd_update update; /* of request.rule; allreduce */
    float *residual;   /* the codec's, as many values as `in`; used only during the submission */
    void *message;     /* the codec's encoding of `in`, freed by the table; NULL: no codec */
    const int64_t *splits; /* alltoall: [to]: rows; NULL: equally many to each rank */
    size_t nsplits;        /* ranks; 0: NULL */
    const char *why;       /* of a failed request, for the error; NULL: no text */
    bool open;             /* out_rows is a guess; see tensor_settle_output */
    void *made; /* by tensor_settle_output: [from]: rows, then the output; the caller's */
    tensor_complete *complete;
    void *arg;
    const struct region *region; /* the one of request.region; NULL: none */
    double submitted;            /* by clock_now */
    bool queued;                 /* it may wait behind another tensor of its name */
    uint64_t turn;               /* of a delegated tensor; see hvd_turn */
    /* The engine thread's own: */
    bool zeros;              /* stands in for a rank that has joined; owned by the table */
    enum tensor_stage stage; /* the negotiation's */
    size_t agreed;           /* bytes that are in batches */
    uint64_t flight;         /* its number in the flight recorder; 0: none */
    bool direct;             /* it lies at the same offset of that region on every rank */
    bool uneven;             /* some rank chooses its own splits */
    double met;              /* send, recv: when the other rank's tensor met it, by clock_now */
    int64_t *rows;           /* every rank's, once agreed on, if they vary; freed by the table */
    struct map_node node;    /* by name */
    /* The table sets: */
    uint64_t id; /* the cache id that was sent; 0: the whole request */
    struct map_node by_id;
    struct tensor *newer, *older; /* neighbours in the table's list */
    struct tensor *behind;        /* queued until this tensor is done */
    struct tensor *last;          /* in a name's first tensor: the last queued one, or itself */
    struct request request;       /* at the end, because its used part has no fixed size */
};

struct tensor_list {
    struct tensor *oldest, *newest;
};

/* Appends the linked tensors from `tensor` to `last`. */
void tensor_list_add(struct tensor_list *list, struct tensor *tensor, struct tensor *last);
void tensor_list_remove(struct tensor_list *list, struct tensor *tensor);

/* came[rank * stride]: how many rows come from each of n ranks. Fails if they do not fill the
 * output. For an open tensor it makes memory with the n numbers, then the output, unless the rows
 * fit the caller's output. */
int tensor_settle_output(struct tensor *tensor, const int64_t *came, size_t stride, size_t n,
                         hvd_error *err);

struct tensors;

struct tensors *tensors_new(void);    /* NULL: no memory */
void tensors_free(struct tensors *t); /* empty, except for zeros */

/* Checks what request_check does not: the update, and that the splits, or a reducescatter's
 * out_rows, fit the request. */
int tensor_check(const struct tensor *tensor, int rank, int size, hvd_error *err);
/* Encodes the tensor if it has a codec. If tensors_add would fail, the residual stays unchanged.
 * Runs on the caller's thread, because the stepping thread has data to move. */
int tensors_encode(struct tensors *t, struct tensor *tensor, hvd_error *err);

/* Sets the error that a tensor of this name is under way on this rank. */
int tensor_duplicate(const struct tensor *tensor, hvd_error *err);

/* Any thread. tensor->node is set. The table keeps the tensor until its completion is called; on an
 * error the caller keeps it. Fails if the name is under way, and after tensors_refuse. But if
 * `queued` is set, or the tensor under way has `failed`, so that no caller waits for it, the tensor
 * is queued behind that one. *corked: tensors_take does not return the tensor yet. */
int tensors_add(struct tensors *t, struct tensor *tensor, bool *corked, hvd_error *err);
size_t tensors_count(struct tensors *t); /* added, not finished */
/* For the stepping thread. The same count; and the name of the oldest taken tensor, if any. */
size_t tensors_oldest(struct tensors *t, char name[HVD_MAX_NAME]);

/* While corked, until tensors_refuse, tensors_take returns NULL. Any thread; calls nest. */
void tensors_cork(struct tensors *t, bool corked);

/* For the stepping thread. Returns the tensors added since the last call, the oldest first, linked
 * by `newer`; NULL: none. */
struct tensor *tensors_take(struct tensors *t);
struct tensor *tensors_find(struct tensors *t, const char *name); /* NULL: not there */
struct tensor *tensors_find_id(struct tensors *t, uint64_t id);   /* the same; id: not 0 */
/* Notes the cache id that is sent for the taken tensor; 0: the whole request. */
int tensors_set_id(struct tensors *t, struct tensor *tensor, uint64_t id, hvd_error *err);

/* For the stepping thread. Adds unnamed zeros for a tensor of other ranks; tensors_finish frees
 * the zeros. */
int tensors_add_zeros(struct tensors *t, const struct request *request, struct tensor **out,
                      hvd_error *err);

/* Removes a taken tensor from the table and completes it with the error or NULL. */
void tensors_finish(struct tensors *t, struct tensor *tensor, const hvd_error *error);

/* Any thread. Later submissions fail with the error of the first call; tensors in the table
 * stay. */
void tensors_refuse(struct tensors *t, const hvd_error *error);

/* tensors_refuse; then finishes all tensors with the error. */
void tensors_close(struct tensors *t, const hvd_error *error);

#endif
