/* What the binding asks of an NDArray: its dtype, shape and memory, and whether it is fit for us.
 *
 * No array is owned here. Errors name the tensor. */
#ifndef HVDLITE_MXNET_ARRAY_H
#define HVDLITE_MXNET_ARRAY_H

#include "hvd.h"
#include "mxnet/api.h"

#include <stdbool.h>

/* Fills in dtype, ndim and dims of *tensor, the last one in `dims`, which must last as long. */
int mxnet_array_describe(const struct mxnet_api *api, NDArrayHandle array, hvd_tensor *tensor,
                         int64_t dims[HVD_MAX_DIMS], hvd_error *err);

/* Dense, and on the CPU. */
int mxnet_array_check_storage(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                              hvd_error *err);

/* float32, with as many values as the tensor. */
int mxnet_array_check_residual(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                               size_t count, hvd_error *err);

/* Before an operation on the array is pushed. */
int mxnet_array_settle_layout(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                              hvd_error *err);

/* The array's memory in plain layout; only where MXNet has granted us the array does it hold still. */
int mxnet_array_memory(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                       void **data, hvd_error *err);

/* Any two are views of the same memory, by which MXNet schedules. Sorts them. */
bool mxnet_array_any_share(NDArrayHandle *arrays, int n);

/* How many NDArrays, wherever they are, share its memory. */
int mxnet_array_references(NDArrayHandle array);

#endif
