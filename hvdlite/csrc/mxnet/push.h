/* The MXNet binding: collectives as asynchronous operations of MXNet's engine.
 *
 * No header and no link of MXNet: its C API is looked up in the library that Python has
 * loaded (MXNet 1.6 to 2.0). An operation waits in MXNet's queues until its arrays are free,
 * submits the tensor and returns; the engine thread completes it, and MXNet then runs what waits
 * for the array. An error is raised by MXNet at the user's next wait for the array. */
#ifndef HVDLITE_MXNET_PUSH_H
#define HVDLITE_MXNET_PUSH_H

#include "hvd.h"

/* cdef begin */
typedef struct hvd_mxnet hvd_mxnet;

/* libmxnet: the path of the library that is loaded. callback_arguments: the arguments of its
 * asynchronous functions (four since 2.0.0b1). naive: MXNET_ENGINE_TYPE is NaiveEngine. */
int hvd_mxnet_open(hvd_mxnet **out, const char *libmxnet, int callback_arguments, int naive,
                   hvd_error *err);
void hvd_mxnet_close(hvd_mxnet *lib);

/* One collective on NDArrays, given by their handles, which the caller may free once it is pushed. Of
 * *tensor count name, kind, op, root, group, priority, scales, out_rows, splits, codec and parameter;
 * dtype, shape and memory are the arrays' own. */
typedef struct hvd_mxnet_work {
    void *in; /* NULL: in place in `out` */
    void *out;
    void *residual; /* float32, as many values, for the codecs that need one; else NULL */
    const hvd_tensor *tensor;
} hvd_mxnet_work;

/* Pushes n collectives as one operation: they are submitted together when the arrays of all are free,
 * and end together; if some fail, MXNet raises what went wrong with those at the first wait for any of
 * the arrays. Those of which two share memory go one by one. Raises at once what can be known at once,
 * and then pushes nothing. With the naive engine it returns when the work is done, and the error is the
 * work's. */
int hvd_mxnet_push(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err);

/* The same of one collective in place, of the array with that handle: Python has it as a number. */
int hvd_mxnet_push_in_place(hvd_mxnet *lib, const hvd_tensor *tensor, uintptr_t array,
                            hvd_error *err);

/* What hvd_mxnet_push would refuse at once of an array; nothing is pushed. */
int hvd_mxnet_validate(hvd_mxnet *lib, void *array, const hvd_tensor *tensor, hvd_error *err);

/* How many NDArrays, wherever they are, share the memory of this one. */
int hvd_mxnet_references(void *array);

/* How many pushed operations MXNet has not run yet: they are still to be submitted. */
int hvd_mxnet_waiting(hvd_mxnet *lib);
/* cdef end */

struct mxnet_api;
const struct mxnet_api *hvd_mxnet_api(const hvd_mxnet *lib);

#endif
