/* The life of an operation: one or more collectives that MXNet's engine runs as one.
 *
 * The caller's thread makes an operation, one of MXNet's threads runs or drops the operation, and
 * hvdlite's engine thread completes it. The last of these three threads frees the operation. */
#ifndef HVDLITE_MXNET_OPERATION_H
#define HVDLITE_MXNET_OPERATION_H

#include "base/os.h"
#include "engine/tensors.h"
#include "mxnet/api.h"
#include "mxnet/push.h"
#include "mxnet/queues.h"

#include <stdatomic.h>

struct hvd_mxnet {
    struct mxnet_api api;
    void *function; /* operation_run3 or operation_run4 */
    bool naive;
    atomic_int waiting;   /* number of collectives that are pushed but not submitted */
    struct queues queues; /* the collectives that are pushed but not submitted */
    /* held while an error is given to MXNet, because MXNet's list of exceptions has no lock */
    struct mutex reporting;
    struct mutex freeing; /* guards `freed` */
    /* a list of free blocks for operations with one collective; each block begins with a pointer to
     * the next */
    void *freed;
    /* all operations that can't allocate an error share this error; nothing changes it */
    hvd_error no_memory;
};

enum array { OUT, IN, RESIDUAL, ARRAYS };

struct collective {
    struct operation *op;
    struct queue_entry entry;
    /* handles that hvdlite owns, because users may free their handles before the operation runs;
     * NULL: none */
    NDArrayHandle arrays[ARRAYS];
    int group;
    struct tensor tensor; /* owns its splits */
};

struct held {
    NDArrayHandle array;     /* a handle that hvdlite owns */
    struct host_range *view; /* the range of the view that contains the array; NULL: none */
};

/* An operation, which hvdlite pushes to MXNet. MXNet ends it by operation_end. */
struct operation {
    hvd_mxnet *lib;
    struct on_complete done;
    bool pushed; /* true: hvdlite has given the operation to MXNet */
    bool ran;    /* true: MXNet has run the operation, and not dropped it for a failed array */
    /* for MXNet's naive engine, which ignores errors: the pushing thread waits, then reads this */
    hvd_error *report;
    /* the errors of all failed collectives; NULL: none; lib->reporting guards it */
    hvd_error *error;
    /* number of collectives that have not ended, plus number of entries in the queues */
    atomic_int left;
    struct held *held; /* array of nheld */
    int nheld;
    struct host_range *views; /* ranges of the held arrays, in the order of the collectives */
    int n;
    struct collective collectives[];
};

/* Makes an operation. The caller fills in the collectives' tensors, which are not zeroed. */
int operation_new(hvd_mxnet *lib, int n, struct operation **out, hvd_error *err);

/* Ends an operation, pushed or not; MXNet calls it as the deleter. Frees the operation, immediately
 * or after its collectives have ended. */
void operation_end(void *param);

/* Queues an operation's collectives behind earlier collectives of the same names. */
void operation_enter(struct operation *op);

/* The function that MXNet runs: submits all collectives. MXNet 1.6 to 2.0.0b0 passes three
 * arguments, later versions pass four. */
async_function operation_run3;
async_function4 operation_run4;

/* The completion of a collective's tensor. arg: the collective. */
void operation_collective_ended(void *arg, const hvd_error *error);

#endif
