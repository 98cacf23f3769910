/* The MXNet binding: collectives as asynchronous operations of MXNet's engine.
 *
 * Needs no header of MXNet and does not link to it: the C API is found in the library that Python
 * has loaded (MXNet 1.6 to 2.0). An operation waits in MXNet's queues until its arrays are free,
 * submits the tensor and returns. hvdlite's engine thread completes the operation; then MXNet runs
 * operations that wait for the array. MXNet raises an error at the user's next wait for the
 * array. */
#ifndef HVDLITE_MXNET_PUSH_H
#define HVDLITE_MXNET_PUSH_H

#include "hvd.h"

/* cdef begin */
typedef struct hvd_mxnet hvd_mxnet;

/* Call it once. libmxnet: the path of the loaded library. callback_arguments: how many arguments
 * its asynchronous functions take (four since 2.0.0b1). naive: MXNET_ENGINE_TYPE is NaiveEngine. */
int hvd_mxnet_open(hvd_mxnet **out, const char *libmxnet, int callback_arguments, int naive,
                   hvd_error *err);

/* One collective on NDArrays. The caller may free their handles after the push. It uses name, kind,
 * op, root, group, priority, scales, out_rows, splits, codec and parameter of *tensor; dtype, shape
 * and memory come from the arrays. */
typedef struct hvd_mxnet_work {
    void *in; /* NULL: `out` is also the input */
    void *out;
    void *residual; /* float32, with as many values as `out`; NULL if the codec needs no residual */
    const hvd_tensor *tensor;
} hvd_mxnet_work;

/* An array that an operation waits for and holds, but does not move: a weight or a state that
 * exists once on a host. */
typedef struct hvd_mxnet_held {
    void *array;
    hvd_memory
        *memory; /* the memory in whose view the array lies, alone in its pages; NULL: none */
    int work;    /* index of the collective that settles the view; rising */
} hvd_mxnet_held;

/* Pushes n collectives as one operation. They are submitted together when all arrays are free,
 * and end together. If some fail, MXNet raises their errors at the first wait for any of the
 * arrays. If two arrays share memory, the collectives are pushed one by one. A wrong argument
 * fails at once and pushes nothing. With MXNet's naive engine the call returns when the
 * collectives are done, with their error. */
int hvd_mxnet_push(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err);
/* hvd_mxnet_push for an operation that also holds arrays. No two arrays may share memory. */
int hvd_mxnet_push_holding(hvd_mxnet *lib, const hvd_mxnet_work *works, int n,
                           const hvd_mxnet_held *held, int nheld, hvd_error *err);

/* Pushes one collective in place; `array`: the handle as a number, as Python has it. */
int hvd_mxnet_push_in_place(hvd_mxnet *lib, const hvd_tensor *tensor, uintptr_t array,
                            hvd_error *err);

/* Fails if hvd_mxnet_push would fail at once for this array; pushes nothing. */
int hvd_mxnet_validate(hvd_mxnet *lib, void *array, const hvd_tensor *tensor, hvd_error *err);

/* How many NDArrays, anywhere in the process, share the memory of this one. */
int hvd_mxnet_references(void *array);

/* Number of collectives that are pushed but not submitted: MXNet has not run their operations. */
int hvd_mxnet_waiting(hvd_mxnet *lib);

/* Finds the last failure that MXNet has raised with exactly this text. The text is all that MXNet
 * keeps of a failure. 1: *err is that failure; 0: there is none. */
int hvd_mxnet_failure_of(hvd_mxnet *lib, const char *text, hvd_error *err);

/* A watch tells, without waiting, whether NDArrays have been written. It pushes an empty operation
 * that reads the arrays. MXNet runs this operation when all earlier operations on the arrays are
 * done, or drops it when one of the arrays has failed. */
typedef struct hvd_mxnet_watch hvd_mxnet_watch;
/* Watches the operations pushed so far on n arrays, given by their handles; NULL: see *err. */
hvd_mxnet_watch *hvd_mxnet_watch_start(hvd_mxnet *lib, void **arrays, int n, hvd_error *err);
/* 1: all watched operations are done or have failed; 0: not yet. */
int hvd_mxnet_watch_done(hvd_mxnet_watch *w);
void hvd_mxnet_watch_end(hvd_mxnet_watch *w); /* frees the watch; may be called at any time */
/* cdef end */

#endif
