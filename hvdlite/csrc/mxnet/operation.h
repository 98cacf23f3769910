/* Operation: one or more collectives that MXNet's engine runs as one, and their lifetime.
 *
 * The caller's thread makes an operation, one of MXNet's threads runs or drops it, hvdlite's engine
 * thread completes it. The last of these frees it. */
#ifndef HVDLITE_MXNET_OPERATION_H
#define HVDLITE_MXNET_OPERATION_H

#include "base/sync.h"
#include "engine/tensors.h"
#include "mxnet/api.h"
#include "mxnet/push.h"
#include "mxnet/queues.h"

#include <stdatomic.h>

enum { MXNET_FAILURES = 1024 };

struct hvd_mxnet {
    struct mxnet_api api;
    void *function; /* operation_run3 or operation_run4 */
    bool naive;
    atomic_int waiting;     /* collectives that are pushed and not yet submitted */
    struct queues queues;   /* of these */
    struct mutex reporting; /* taken around each error: MXNet's list of exceptions has no lock */
    struct mutex freeing;   /* guards `freed` */
    void *freed;            /* memory of operations of one collective; each has the next first */
    hvd_error *failures[MXNET_FAILURES]; /* given to MXNet, the last ones; owned, as is: */
    size_t nfailures;                    /* how many there were; both guarded by reporting */
    hvd_error no_memory;                 /* of an operation without memory for its own error */
};

enum array { OUT, IN, RESIDUAL, ARRAYS };

/* One collective of an operation. */
struct collective {
    struct operation *op;
    struct queue_entry entry;
    /* hvdlite's own: the user may free theirs before the operation runs; NULL: none */
    NDArrayHandle arrays[ARRAYS];
    int group;
    struct tensor tensor; /* owns its splits */
};

/* An array that the operation holds. */
struct held {
    NDArrayHandle array;     /* hvdlite's handle */
    struct host_range *view; /* its range of a view; NULL: it lies in none */
};

/* What is pushed. MXNet's deleter ends it, inside the completion at the earliest. */
struct operation {
    hvd_mxnet *lib;
    struct on_complete done;
    bool pushed,
        ran; /* MXNet dropped it without running it, because one of its arrays has failed */
    hvd_error *report; /* the naive engine ignores errors: the pusher waits and reads it here */
    hvd_error *error;  /* of all failed collectives; NULL: none failed; guarded by lib->reporting */
    atomic_int left;   /* collectives that have not ended, and entries of the queues */
    struct held *held; /* [nheld] */
    int nheld;
    struct host_range *views; /* of the held arrays, by collectives */
    int n;
    struct collective collectives[];
};

/* The caller fills in the collectives' tensors, which are not zeroed. */
int operation_new(hvd_mxnet *lib, int n, struct operation **out, hvd_error *err);

/* Ends an operation, pushed or not; MXNet's deleter. Frees the operation now or after its
 * collectives. */
void operation_end(void *param);

/* Queues an operation's collectives behind earlier ones of the same names. */
void operation_enter(struct operation *op);

/* What MXNet runs: submits all collectives. MXNet 1.6 to 2.0.0b0 passes three arguments, later
 * four. */
async_function operation_run3;
async_function4 operation_run4;

/* Completes a collective's tensor; arg: the collective. */
void operation_collective_ended(void *arg, const hvd_error *error);

#endif
