/* What the binding asks of an NDArray: its dtype, shape and memory, and whether hvdlite can use it.
 *
 * Owns no array. Errors name the tensor. */
#ifndef HVDLITE_MXNET_ARRAY_H
#define HVDLITE_MXNET_ARRAY_H

#include "hvd.h"
#include "mxnet/api.h"

/* Fills in dtype, ndim and dims of *tensor; its dims are `dims`, which must live as long. */
int mxnet_array_describe(const struct mxnet_api *api, NDArrayHandle array, hvd_tensor *tensor,
                         int64_t dims[HVD_MAX_DIMS], hvd_error *err);

/* Fails unless the array is dense and on the CPU. */
int mxnet_array_check_storage(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                              hvd_error *err);

/* Fails unless the array is float32 and has `count` values, as many as the tensor. */
int mxnet_array_check_residual(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                               size_t count, hvd_error *err);

/* Call it before an operation on the array is pushed. */
int mxnet_array_settle_layout(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                              hvd_error *err);

/* The array's memory in plain layout; valid while an operation of MXNet's engine holds it. */
int mxnet_array_memory(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                       void **data, hvd_error *err);

/* True if any two are views of the same memory, by which MXNet schedules. Sorts the arrays. */
bool mxnet_array_any_share(NDArrayHandle *arrays, int n);

#endif
