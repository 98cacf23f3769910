/* MXNet's C API, as far as hvdlite uses it.
 *
 * The functions are looked up in the library that Python has loaded. This file has the types and
 * signatures of c_api.h and engine.h of MXNet 1.6 to 2.0, so no header of MXNet is needed. */
#ifndef HVDLITE_MXNET_API_H
#define HVDLITE_MXNET_API_H

#include "hvd.h"

typedef void *NDArrayHandle;

/* mxnet::engine::CallbackOnComplete, three words in all versions of MXNet. `error` points to a
 * dmlc::Error. */
struct on_complete {
    void (*call)(void *engine, void *param, const void *error);
    void *engine, *param;
};

struct device {
    int32_t type, id;
};

enum { CPU = 1, GPU = 2, CPU_PINNED = 3, CPU_SHARED = 5 };
/* FnProperty kAsync: an operation whose arrays are free runs immediately on the pushing thread, any
 * other operation on its device's worker. NOBODYS_DEVICE: device 15 of the type "shared memory",
 * whose worker runs no operators. (A CPU device with a number above the number of cores would make
 * MXNet's profiler abort.) */
enum { ASYNC = 4, NOBODYS_DEVICE = 15 };
/* kCPUPrioritized: operations run by priority, on a pool of workers that runs no operators. */
enum { CPU_PRIORITIZED = 3 };
enum { DENSE = 0 }; /* storage type */

typedef void async_function(void *run_context, struct on_complete *done, void *param);
typedef void async_function4(void *run_context, void *on_start, struct on_complete *done,
                             void *param);

typedef void sync_function(void *run_context, void *param);

struct mxnet_api {
    int (*push)(void *function, void *param, void (*deleter)(void *), const struct device *,
                NDArrayHandle *reads, int nreads, NDArrayHandle *writes, int nwrites,
                const int *property, int priority, const char *name, bool wait);
    int (*push_sync)(sync_function *function, void *param, void (*deleter)(void *),
                     const struct device *, NDArrayHandle *reads, int nreads, NDArrayHandle *writes,
                     int nwrites, const int *property, int priority, const char *name);
    int (*shallow_copy)(NDArrayHandle, NDArrayHandle *);
    int (*release)(NDArrayHandle);
    int (*get_data)(NDArrayHandle, void **);
    int (*get_shape)(NDArrayHandle, int *ndim, const int64_t **dims);
    int (*get_shape32)(NDArrayHandle, int *ndim, const int **dims); /* if MXNet has no get_shape */
    int (*get_dtype)(NDArrayHandle, int *);
    int (*get_storage_type)(NDArrayHandle, int *);
    int (*get_context)(NDArrayHandle, int *type, int *id);
    int (*wait_to_read)(NDArrayHandle);
    int (*is_recording)(bool *);
    const char *(*last_error)(void);
    /* C++ methods of NDArray::Chunk, whose only argument is `this`: whether the layout is oneDNN's,
     * and the change back to the plain layout. is_blocked NULL: MXNet does not export them. */
    bool (*is_blocked)(void *chunk);
    void (*unblock)(void *chunk);
    /* Constructor and destructor of std::runtime_error. dmlc::Error, its subclass, adds no
     * members. */
    void (*make_error)(void *error, const char *text);
    void (*destroy_error)(void *error);
};

/* libmxnet: path of the library, which must be loaded already. */
int mxnet_api_find(struct mxnet_api *api, const char *libmxnet, hvd_error *err);

/* ---- functions on an NDArray; each error names the tensor ---- */

/* Fills in dtype, ndim and dims of *tensor. tensor->dims points to `dims`, so `dims` must live as
 * long as *tensor. */
int mxnet_array_describe(const struct mxnet_api *api, NDArrayHandle array, hvd_tensor *tensor,
                         int64_t dims[HVD_MAX_DIMS], hvd_error *err);

/* Fails unless the array is dense and in CPU memory. */
int mxnet_array_check_storage(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                              hvd_error *err);

/* Fails unless the array is float32 with `count` values, as many as the tensor has. */
int mxnet_array_check_residual(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                               size_t count, hvd_error *err);

/* Makes a second handle to the array; hvdlite owns this handle. */
int mxnet_array_keep(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                     NDArrayHandle *own, hvd_error *err);

/* Restores the array's plain layout if this MXNet can do so only by waiting for the array. Call
 * this function before pushing an operation on the array. */
int mxnet_array_restore_layout(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                               hvd_error *err);

/* Returns the array's memory in plain layout; valid while an operation of MXNet's engine holds the
 * array. */
int mxnet_array_memory(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                       void **data, hvd_error *err);

/* Returns whether any two arrays are views of the same memory: MXNet treats such arrays as one
 * variable. Sorts the arrays. */
bool mxnet_array_any_share(NDArrayHandle *arrays, int n);

#endif
