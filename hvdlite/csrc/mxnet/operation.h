/* Operation: one or more collectives that MXNet's engine runs as one, from its memory to its end.
 *
 * The caller's thread makes it, a thread of MXNet's runs it or drops it, the engine thread of hvdlite
 * completes it; who lets go last frees it. */
#ifndef HVDLITE_MXNET_OPERATION_H
#define HVDLITE_MXNET_OPERATION_H

#include "base/free_list.h"
#include "engine/tensors.h"
#include "mxnet/array.h"
#include "mxnet/push.h"

#include <stdatomic.h>

struct hvd_mxnet {
    struct mxnet_api api;
    void *function; /* operation_run3 or operation_run4 */
    bool naive;
    atomic_int waiting;       /* operations pushed and not yet run */
    struct monitor reporting; /* MXNet's list of exceptions has no lock: report one at a time */
    struct free_list memory;  /* of operations of one collective */
    hvd_error no_memory;      /* what fails when there is none for its own error */
};

enum array { OUT, IN, RESIDUAL, ARRAYS };

/* One collective of an operation. */
struct collective {
    struct operation *op;
    NDArrayHandle arrays[ARRAYS]; /* our own: the user's may be gone when we run. NULL: not given */
    int group;
    struct tensor tensor; /* with splits of its own */
};

/* What is pushed; MXNet's deleter ends it, inside the completion at the earliest. */
struct operation {
    hvd_mxnet *lib;
    struct on_complete done;
    bool pushed, ran;  /* pushed and not run: MXNet dropped it, as an array of its has failed */
    hvd_error *report; /* the naive engine ignores errors: the pusher, who waits, reads it here */
    hvd_error *error;  /* of all collectives that failed, NULL: none has; under lib->reporting */
    atomic_int left;   /* collectives that have not ended, and whoever submits them */
    int n;
    struct collective collectives[];
};

/* Not all of it is zeroed: a collective's tensor is large, and the caller writes it. */
int operation_new(hvd_mxnet *lib, int n, struct operation **out, hvd_error *err);

/* MXNet's deleter, and the end of what was not pushed: frees it now, or when its collectives have ended. */
void operation_end(void *param);

/* What MXNet runs: submits all collectives. MXNet 1.6 to 2.0.0b0 gives three arguments, later ones four. */
async_function operation_run3;
async_function4 operation_run4;

/* The completion of a collective's tensor; arg: the collective. */
void operation_collective_ended(void *arg, const hvd_error *error);

#endif
