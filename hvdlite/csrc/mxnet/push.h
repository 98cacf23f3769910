/* The MXNet binding: collectives as asynchronous operations of MXNet's engine.
 *
 * The binding needs no header of MXNet and does not link to MXNet: it looks up the C API in the
 * library that Python has loaded (MXNet 1.6 to 2.0). An operation waits in MXNet's queues until its
 * arrays are free, then submits the tensor and returns. hvdlite's engine thread completes the
 * operation; then MXNet runs the operations that wait for the array. If a collective fails, MXNet
 * raises the error at the user's next wait for the array. */
#ifndef HVDLITE_MXNET_PUSH_H
#define HVDLITE_MXNET_PUSH_H

#include "hvd.h"

/* cdef begin */
typedef struct hvd_mxnet hvd_mxnet;

/* Call it once. libmxnet: path of the loaded library. callback_arguments: number of arguments of
 * MXNet's asynchronous functions (4 since 2.0.0b1). naive: MXNET_ENGINE_TYPE is NaiveEngine. */
int hvd_mxnet_open(hvd_mxnet **out, const char *libmxnet, int callback_arguments, int naive,
                   hvd_error *err);

/* One collective on NDArrays. The caller may free its handles after the push. Used fields of
 * *tensor: name, kind, op, root, group, priority, scales, out_rows, splits, codec and parameter.
 * The arrays determine the dtype, the shape and the memory. */
typedef struct hvd_mxnet_work {
    void *in; /* NULL: `out` is also the input */
    void *out;
    void *residual; /* float32, as many values as `out`; NULL if the codec has no residual */
    const hvd_tensor *tensor;
} hvd_mxnet_work;

/* An array that an operation waits for and holds, but does not move: a weight or an optimizer state
 * that exists once per host. */
typedef struct hvd_mxnet_held {
    void *array;
    /* the memory whose view contains the array, in pages without other data; NULL: none */
    hvd_memory *memory;
    /* index of the collective that calls host_memory_settle for the array; not below the index of
     * the previous hvd_mxnet_held */
    int work;
} hvd_mxnet_held;

/* Pushes n collectives as one operation. When all arrays are free, all collectives are submitted
 * together; they also end together. If some fail, MXNet raises their errors at the first wait for
 * any of the arrays. If two arrays share memory, pushes the collectives one by one. If an argument
 * is wrong, the call fails immediately and pushes nothing. With MXNet's naive engine, the call
 * returns when the collectives are done, with their error. */
int hvd_mxnet_push(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err);
/* Like hvd_mxnet_push, for an operation that also holds arrays. No two arrays may share memory. */
int hvd_mxnet_push_holding(hvd_mxnet *lib, const hvd_mxnet_work *works, int n,
                           const hvd_mxnet_held *held, int nheld, hvd_error *err);

/* Pushes one in-place collective. `array`: the handle as a number, as Python has it. */
int hvd_mxnet_push_in_place(hvd_mxnet *lib, const hvd_tensor *tensor, uintptr_t array,
                            hvd_error *err);

/* Pushes nothing. Fails if hvd_mxnet_push would immediately fail for this array. */
int hvd_mxnet_validate(hvd_mxnet *lib, void *array, const hvd_tensor *tensor, hvd_error *err);

/* Returns how many NDArrays of the process share the memory of this array. */
int hvd_mxnet_references(void *array);

/* Returns 1 if autograd records the operations of this thread, else 0. */
int hvd_mxnet_is_recording(hvd_mxnet *lib);

/* Returns the number of collectives that are pushed but not submitted, because MXNet has not run
 * their operations yet. */
int hvd_mxnet_waiting(hvd_mxnet *lib);

/* A watch shows, without waiting, whether NDArrays have been written. hvd_mxnet_watch_start pushes
 * an empty operation that reads the arrays. MXNet runs this operation when all earlier operations
 * on the arrays are done, or drops it if one of the arrays has failed. */
typedef struct hvd_mxnet_watch hvd_mxnet_watch;
/* Starts a watch of the operations that have been pushed on n arrays, given by their handles. NULL:
 * see *err. */
hvd_mxnet_watch *hvd_mxnet_watch_start(hvd_mxnet *lib, void **arrays, int n, hvd_error *err);
/* Returns 1 if all watched operations are done or have failed, else 0. */
int hvd_mxnet_watch_done(hvd_mxnet_watch *w);
void hvd_mxnet_watch_end(hvd_mxnet_watch *w); /* frees the watch; may be called before it is done */
/* cdef end */

#endif
