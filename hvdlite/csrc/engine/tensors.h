/* The tensor table: what this rank has submitted and not yet got back.
 *
 * Any thread submits; the engine thread takes, finds and finishes. One lock guards the table's
 * members; no completion is called under it. Tensors are not copied: 500 small gradients in flight
 * exceed a core's cache, so each is written once. */
#ifndef HVDLITE_ENGINE_TENSORS_H
#define HVDLITE_ENGINE_TENSORS_H

#include "base/map.h"
#include "base/sync.h"
#include "negotiation/request.h"
#include "shm/host_memory.h"

/* The engine thread calls it exactly once, with NULL or the error; never, if the submission fails.
 * After the call the engine touches neither the tensor's memory nor `arg`. */
typedef void tensor_complete(void *arg, const hvd_error *error);

/* Not yet told to the coordinator; told, waits for its decision; in a batch, until it finishes. */
enum tensor_stage { TENSOR_NEW, TENSOR_SAID, TENSOR_AGREED };

struct tensor {
    const void *in; /* request_bytes() bytes */
    void *out;      /* allreduce, broadcast: as many bytes, may be `in`; else out_rows rows */
    int64_t out_rows;
    /* Weights' ranges that this rank settles once all ranks have submitted and none reads them. */
    const struct host_range *views;
    size_t nviews;
    hvd_update update;     /* of request.rule; allreduce */
    float *residual;       /* of its codec: as many values; used during the submission only */
    void *message;         /* the codec's encoding of `in`, freed by the table; NULL: no codec */
    const int64_t *splits; /* alltoall: [to]: rows; NULL: equally many to each rank */
    size_t nsplits;        /* ranks; 0: NULL */
    const char *why;       /* of a failed request, for the error; NULL: no text */
    bool open;             /* out_rows is a guess; see tensor_settle_output */
    void *made; /* by tensor_settle_output: [from]: rows, then the output; the caller's */
    tensor_complete *complete;
    void *arg;
    const struct region *region; /* the one of request.region; NULL: none */
    double submitted;            /* by clock_now */
    bool queued;                 /* it may wait behind one of its name */
    /* The engine thread's own: */
    bool zeros;              /* stands in for a rank that has joined; owned by the table */
    enum tensor_stage stage; /* the negotiation's */
    size_t agreed;           /* bytes that are in batches */
    uint64_t flight;         /* its number in the flight recorder; 0: none */
    bool direct;             /* it lies at the same offset of that region on every rank */
    bool uneven;             /* some rank chooses its splits */
    double met;              /* send, recv: when the other rank was there; by clock_now */
    int64_t *rows;        /* of every rank, once agreed on, where they vary; freed by the table */
    struct map_node node; /* by name */
    /* The table sets: */
    uint64_t id; /* the cache id that it was sent by; 0: sent whole */
    struct map_node by_id;
    struct tensor *newer, *older; /* neighbours in the table's list */
    struct tensor *behind;        /* queued until this one, which failed, is done */
    struct tensor *last;          /* in the first of a name: the last one queued, or itself */
    struct request request;       /* at the end: its used part has no fixed size */
};

struct tensor_list {
    struct tensor *oldest, *newest;
};

/* Appends the linked tensors from `tensor` to `last`. */
void tensor_list_add(struct tensor_list *list, struct tensor *tensor, struct tensor *last);
void tensor_list_remove(struct tensor_list *list, struct tensor *tensor);

/* Once it is known how many rows come from each of n ranks, came[rank * stride]: refuses an output
 * that they do not fill. For an open one makes memory, which begins with the n numbers, and in
 * which the output lies unless the caller's fits. */
int tensor_settle_output(struct tensor *tensor, const int64_t *came, size_t stride, size_t n,
                         hvd_error *err);

struct tensors;

struct tensors *tensors_new(void);    /* NULL: no memory */
void tensors_free(struct tensors *t); /* empty, except for zeros */

/* Checks what request_check does not: that the splits, or the out_rows of a reducescatter, fit the
 * request, and the update. */
int tensor_check(const struct tensor *tensor, int rank, int size, hvd_error *err);
/* Encodes the tensor if it has a codec, unless tensors_add would fail: then its residual stays as
 * it was. On the caller's thread: the one that steps has data to move. */
int tensors_encode(struct tensors *t, struct tensor *tensor, hvd_error *err);

/* The error that a tensor of its name is under way on this rank. */
int tensor_duplicate(const struct tensor *tensor, hvd_error *err);

/* Any thread. The tensor has its node by name. The table keeps the tensor until its completion is
 * called; on an error the caller keeps it. Fails for a name that is under way, and after
 * tensors_refuse. A tensor is queued behind one of its name if it has `queued` set or that one
 * `failed`, whose caller waits for nothing. *corked: tensors_take does not give it yet. */
int tensors_add(struct tensors *t, struct tensor *tensor, bool *corked, hvd_error *err);
size_t tensors_count(struct tensors *t); /* added, not finished */
/* The engine thread. The same; and the name of the oldest that it has taken, if any. */
size_t tensors_oldest(struct tensors *t, char name[HVD_MAX_NAME]);

/* While corked, until tensors_refuse, tensors_take returns NULL. Any thread; calls nest. */
void tensors_cork(struct tensors *t, bool corked);

/* The engine thread. The oldest tensor added since the last call, linked by `newer`; NULL: none. */
struct tensor *tensors_take(struct tensors *t);
struct tensor *tensors_find(struct tensors *t, const char *name); /* NULL: not there */
struct tensor *tensors_find_id(struct tensors *t, uint64_t id);   /* the same; id: not 0 */
/* Notes that the taken tensor is sent by this id; 0: whole. */
int tensors_set_id(struct tensors *t, struct tensor *tensor, uint64_t id, hvd_error *err);

/* The engine thread. Zeros, without a name, for what other ranks reduce; tensors_finish frees
 * them. */
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
