/* The tensor table: the tensors that this rank has submitted and that are not complete.
 *
 * Any thread submits; the engine thread takes, finds and finishes. One lock guards the table's
 * members; no completion is called under it. The caller's struct tensor is not copied into the
 * table: 500 small tensors in flight exceed a core's cache. */
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
    /* Ranges of weights that this rank settles when all ranks have submitted the tensor, so that
     * no rank reads the weights any more. */
    const struct host_range *views;
    size_t nviews;
    hvd_update update; /* the update by request.rule, for an allreduce */
    float *residual;   /* the codec's, as many values as `in`; used only during the submission */
    void *message;     /* the codec's encoding of `in`, freed by the table; NULL: no codec */
    const int64_t *splits; /* alltoall: [to]: rows for the rank; NULL: equally many for each */
    size_t nsplits;        /* length of `splits`; 0 if it is NULL */
    const char *why;       /* why the request has failed, for the error; NULL: no text */
    bool open;             /* out_rows is a guess; see tensor_fit_output */
    /* memory from tensor_fit_output, owned by the caller: the rows of each rank, the output */
    void *made;
    tensor_complete *complete;
    void *arg;
    const struct region *region; /* the region with the number request.region; NULL: none */
    double submitted;            /* when it was submitted, by clock_now */
    bool queued;                 /* true: it may wait behind another tensor of its name */
    uint64_t turn;               /* turn of a delegated tensor; see hvd_turn */
    /* Only the stepping thread uses these: */
    bool zeros;              /* stands in for a rank that has joined; owned by the table */
    enum tensor_stage stage; /* how far the negotiation has come */
    size_t agreed;           /* bytes that are in batches */
    uint64_t flight;         /* number of its operation in the flight recorder; 0: none */
    bool direct;             /* true: it lies at the same offset of its region on every rank */
    bool uneven;             /* true: a rank has chosen its own splits */
    double met;              /* send, recv: when the other rank's tensor met it, by clock_now */
    /* rows of every rank, once agreed on, if they vary; freed by the table */
    int64_t *rows;
    struct map_node node; /* the tensor's node in the map of names */
    /* The table sets these: */
    uint64_t id; /* the cache id that was sent; 0: the whole request */
    struct map_node by_id;
    struct tensor *newer, *older; /* neighbours in the table's list */
    struct tensor *behind;        /* the tensor that is queued until this one is done */
    /* in the first tensor of a name: the last queued tensor, or itself */
    struct tensor *last;
    struct request request; /* at the end, because its used part has no fixed size */
};

struct tensor_list {
    struct tensor *oldest, *newest;
};

/* Appends the linked tensors from `tensor` to `last`. */
void tensor_list_add(struct tensor_list *list, struct tensor *tensor, struct tensor *last);
void tensor_list_remove(struct tensor_list *list, struct tensor *tensor);

/* Fits the output to the rows that come from n ranks, came[rank * stride] from each. For an open
 * tensor makes memory for the n numbers and the output, unless the rows fit the caller's output.
 * Otherwise fails if the rows do not fill the output. */
int tensor_fit_output(struct tensor *tensor, const int64_t *came, size_t stride, size_t n,
                      hvd_error *err);

struct tensors;

struct tensors *tensors_new(void);    /* NULL: no memory */
void tensors_free(struct tensors *t); /* no tensor may be in the table, except zeros */

/* Checks what request_check does not: the update, and that the splits, or a reducescatter's
 * out_rows, fit the request. */
int tensor_check(const struct tensor *tensor, int rank, int size, hvd_error *err);
/* Encodes the tensor if it has a codec. If tensors_add would fail, the residual stays unchanged.
 * Runs on the caller's thread, because the stepping thread has data to move. */
int tensors_encode(struct tensors *t, struct tensor *tensor, hvd_error *err);

/* Sets the error that a tensor of this name is under way on this rank. */
int tensor_duplicate(const struct tensor *tensor, hvd_error *err);

/* Any thread. tensor->node is set. The table keeps the tensor until its completion is called; on
 * an error the caller keeps it. Fails if the name is under way, and after tensors_refuse.
 * Instead of failing, queues the tensor behind the tensor under way if `queued` is set, or if
 * the tensor under way has `failed`, so that no caller waits for it. *corked: a cork holds the
 * tensor back from tensors_take. */
int tensors_add(struct tensors *t, struct tensor *tensor, bool *corked, hvd_error *err);
size_t tensors_count(struct tensors *t); /* number of tensors added and not finished */
/* For the stepping thread. Returns tensors_count, and the name of the oldest taken tensor, if
 * any. */
size_t tensors_oldest(struct tensors *t, char name[HVD_MAX_NAME]);

/* While corked, until tensors_refuse, tensors_take returns NULL. Any thread; calls nest. */
void tensors_cork(struct tensors *t, bool corked);

/* For the stepping thread. Returns the tensors added since the last call, the oldest first, linked
 * by `newer`; NULL: none. */
struct tensor *tensors_take(struct tensors *t);
struct tensor *tensors_find(struct tensors *t, const char *name); /* NULL: not there */
struct tensor *tensors_find_id(struct tensors *t, uint64_t id);   /* NULL: not there; id: not 0 */
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

/* Does what tensors_refuse does, then finishes all tensors with the error. */
void tensors_close(struct tensors *t, const hvd_error *error);

#endif
