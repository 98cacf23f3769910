/* The tensor table: what this rank has submitted and not yet got back.
 *
 * Any thread submits; the engine thread takes, finds and finishes. The one lock guards the
 * table's members; a completion is never called under it. Tensors are not copied: 500 small gradients in
 * flight are more than a core's cache holds, so that each is written down once. */
#ifndef HVDLITE_ENGINE_TENSORS_H
#define HVDLITE_ENGINE_TENSORS_H

#include "base/map.h"
#include "base/sync.h"
#include "negotiation/request.h"

/* Called exactly once, with NULL or with the error, by the engine thread (or, when the submission
 * itself fails, never). After the call the engine touches neither the tensor's memory nor `arg`. */
typedef void tensor_complete(void *arg, const hvd_error *error);

/* Not yet told to the coordinator; waits for its word; in a batch, with which it ends. */
enum tensor_stage { TENSOR_NEW, TENSOR_SAID, TENSOR_AGREED };

struct tensor {
    const void *in; /* request_bytes() bytes */
    void *out;      /* allreduce, broadcast: as many, may be `in`; else out_rows rows */
    int64_t out_rows;
    float *residual; /* of its codec: as many values; read and written while it is submitted */
    void *message;   /* `in` as its codec has encoded it; the table frees it; NULL: as it is */
    const int64_t *splits; /* alltoall: [from * ranks + to]: rows */
    size_t nsplits;        /* ranks * ranks */
    tensor_complete *complete;
    void *arg;
    const struct region *region; /* of request.region; NULL: in none */
    double submitted;            /* when, by clock_now */
    /* The engine thread's own: */
    bool zeros; /* stands in for a rank that has joined; in the table's list of those */
    enum tensor_stage stage; /* the negotiation's */
    bool direct;             /* every rank's lies at the same place of that region */
    int64_t *rows; /* where they vary: of every rank, once agreed on; the table frees it */
    /* The table sets: */
    uint64_t id;                  /* the cache id it was sent by; 0: by its whole request */
    struct map_node node, by_id;  /* by its name; by that id */
    struct tensor *newer, *older; /* neighbours: of those taken, of those that are not, of zeros */
    struct tensor *behind;  /* of its name: not in a list before this one, which failed, is out */
    struct tensor *last;    /* of the first one of its name: the end of that row, maybe itself */
    struct request request; /* last: what is in use of it ends anywhere */
};

struct tensors;

struct tensors *tensors_new(void);    /* NULL: no memory */
void tensors_free(struct tensors *t); /* but for zeros it must be empty */

/* What the request does not tell: that the splits suit the rows that come and go, and out_rows. */
int tensor_check(const struct tensor *tensor, int rank, int size, hvd_error *err);

/* Any thread. The tensor is the table's until its completion is called. Fails when one of that name is
 * under way, and after tensors_refuse with the error given there; it stays the caller's then. Behind one
 * that has failed it waits its turn: nobody was told to wait for that one's end. *corked: it is not to be
 * taken yet. */
int tensors_add(struct tensors *t, struct tensor *tensor, bool *corked, hvd_error *err);
size_t tensors_count(struct tensors *t); /* added and not finished */

/* While it is corked tensors_take gives nothing. Any thread; calls may nest. */
void tensors_cork(struct tensors *t, bool corked);

/* The engine thread. Each tensor once, in the order in which they were added: the first of those that
 * came since the last call, then its `newer`; NULL: no more. */
struct tensor *tensors_take(struct tensors *t);
struct tensor *tensors_find(struct tensors *t, const char *name); /* NULL: not there */
struct tensor *tensors_find_id(struct tensors *t, uint64_t id);   /* the same; id: not 0 */
/* Of one that was taken: it is sent by this id; 0: by its whole request. */
int tensors_set_id(struct tensors *t, struct tensor *tensor, uint64_t id, hvd_error *err);

/* The engine thread. Zeros for what the other ranks reduce, under no name; finished like all others. */
int tensors_add_zeros(struct tensors *t, const struct request *request, struct tensor **out,
                      hvd_error *err);

/* Of one that was taken: removes it from the table and completes it with error or NULL. */
void tensors_finish(struct tensors *t, struct tensor *tensor, const hvd_error *error);

/* Later submissions fail with the error (the first one given); what is in the table stays. Any
 * thread. */
void tensors_refuse(struct tensors *t, const hvd_error *error);

/* The same, and finishes everything with it. */
void tensors_close(struct tensors *t, const hvd_error *error);

#endif
