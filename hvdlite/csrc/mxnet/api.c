#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "mxnet/api.h"

#include "mxnet/push.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Looks up a function. Copies the pointer, because ISO C can't cast an object pointer to a function
 * pointer. */
static bool find(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address != NULL;
}

static int find_functions(struct mxnet_api *api, void *libmxnet, hvd_error *err) {
    struct {
        const char *name;
        void *function;
    } const needed[] = {
        {"MXEnginePushAsyncND", &api->push},
        {"MXEnginePushSyncND", &api->push_sync},
        {"MXShallowCopyNDArray", &api->shallow_copy},
        {"MXNDArrayFree", &api->release},
        {"MXNDArrayGetData", &api->get_data},
        {"MXNDArrayGetDType", &api->get_dtype},
        {"MXNDArrayGetStorageType", &api->get_storage_type},
        {"MXNDArrayGetContext", &api->get_context},
        {"MXNDArrayWaitToRead", &api->wait_to_read},
        {"MXAutogradIsRecording", &api->is_recording},
        {"MXGetLastError", &api->last_error},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!find(libmxnet, needed[i].name, needed[i].function))
            return error_set(err, HVD_UNSUPPORTED,
                             "this MXNet does not export %s: hvdlite needs MXNet 1.6 or later",
                             needed[i].name);
    /* MXNet 2.0 dropped the suffix Ex. In 1.x the suffix distinguished these functions from an
     * older MXNDArrayGetShape. */
    if (!find(libmxnet, "MXNDArrayGetShapeEx64", &api->get_shape) &&
        !find(libmxnet, "MXNDArrayGetShapeEx", &api->get_shape32) &&
        !find(libmxnet, "MXNDArrayGetShape64", &api->get_shape))
        return error_set(err, HVD_UNSUPPORTED,
                         "this MXNet exports neither MXNDArrayGetShapeEx nor MXNDArrayGetShape64");
    bool asks = find(libmxnet, "_ZNK5mxnet7NDArray5Chunk8IsMKLDNNEv", &api->is_blocked) ||
                find(libmxnet, "_ZNK5mxnet7NDArray5Chunk6IsDNNLEv", &api->is_blocked);
    if (!find(libmxnet, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", &api->unblock) || !asks)
        api->is_blocked = NULL;
    return HVD_OK;
}

static int find_exceptions(struct mxnet_api *api, hvd_error *err) {
    void *libstdcpp = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_NOLOAD);
    if (libstdcpp && find(libstdcpp, "_ZNSt13runtime_errorC1EPKc", &api->make_error) &&
        find(libstdcpp, "_ZNSt13runtime_errorD1Ev", &api->destroy_error))
        return HVD_OK;
    return error_set(err, HVD_UNSUPPORTED,
                     "MXNet has not loaded libstdc++.so.6, which hvdlite needs to report errors");
}

int mxnet_api_find(struct mxnet_api *api, const char *libmxnet, hvd_error *err) {
    void *library = dlopen(libmxnet, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return error_set(err, HVD_UNSUPPORTED, "%s is not loaded: import mxnet first", libmxnet);
    HVD_TRY(find_functions(api, library, err));
    return find_exceptions(api, err);
}

/* ---- arrays ---- */

static int mxnet_failed(const struct mxnet_api *api, const char *name, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "tensor '%s': MXNet failed: %s", name, api->last_error());
}

static int translate_dtype(int flag, const char *name, int *dtype, hvd_error *err) {
#define ROW(DTYPE, NAME, TORCH, MXNET, ...) [HVD_##DTYPE] = MXNET,
    static const signed char FLAGS[] = {DTYPES(ROW)};
#undef ROW
    for (int i = 0; i < HVD_DTYPES; i++)
        if (FLAGS[i] >= 0 && FLAGS[i] == flag) return *dtype = i, HVD_OK;
    /* Formats the names only now, because formatting takes 6 us. */
    char known[200] = "";
    for (int i = 0, n = 0; i < HVD_DTYPES; i++) {
        if (FLAGS[i] < 0) continue;
        n += snprintf(known + n, sizeof known - (size_t)n, "%s%s", n ? ", " : "", dtype_name(i));
    }
    return error_set(err, HVD_UNSUPPORTED,
                     "tensor '%s' has a dtype (MXNet's type flag %d) that hvdlite does not handle: "
                     "cast it to one of %s",
                     name, flag, known);
}

int mxnet_array_check_storage(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                              hvd_error *err) {
    int storage, device, id;
    if (api->get_storage_type(array, &storage) || api->get_context(array, &device, &id))
        return mxnet_failed(api, name, err);
    if (storage != DENSE)
        return error_set(
            err, HVD_UNSUPPORTED,
            "tensor '%s' has storage type %s: expected dense; convert it with tostype('default')",
            name,
            storage == 1   ? "row_sparse"
            : storage == 2 ? "csr"
                           : "undefined");
    if (device != CPU && device != CPU_PINNED && device != CPU_SHARED)
        return error_set(err, HVD_UNSUPPORTED,
                         "tensor '%s' is on %s(%d): expected an array on a CPU, because no release "
                         "of MXNet supports today's GPUs; copy it with as_in_context(mx.cpu())",
                         name, device == GPU ? "gpu" : "an unknown device", id);
    return HVD_OK;
}

/* MXNet owns the buffer of the shape; the buffer is valid until this thread's next call. */
static int read_shape(const struct mxnet_api *api, NDArrayHandle array, const char *name, int *rank,
                      int64_t sizes[HVD_MAX_DIMS], hvd_error *err) {
    int ndim = 0;
    const int64_t *dims = NULL;
    const int *dims32 = NULL;
    if (api->get_shape ? api->get_shape(array, &ndim, &dims)
                       : api->get_shape32(array, &ndim, &dims32))
        return mxnet_failed(api, name, err);
    if (ndim < 0 || ndim > HVD_MAX_DIMS)
        return error_set(err, HVD_UNSUPPORTED, "tensor '%s' has %d dimensions: expected 0 to %d",
                         name, ndim, HVD_MAX_DIMS);
    for (int i = 0; i < ndim; i++) sizes[i] = dims ? dims[i] : dims32[i];
    *rank = ndim;
    return HVD_OK;
}

int mxnet_array_describe(const struct mxnet_api *api, NDArrayHandle array, hvd_tensor *tensor,
                         int64_t dims[HVD_MAX_DIMS], hvd_error *err) {
    int flag;
    HVD_TRY(mxnet_array_check_storage(api, array, tensor->name, err));
    if (api->get_dtype(array, &flag)) return mxnet_failed(api, tensor->name, err);
    HVD_TRY(translate_dtype(flag, tensor->name, &tensor->dtype, err));
    HVD_TRY(read_shape(api, array, tensor->name, &tensor->ndim, dims, err));
    tensor->dims = dims;
    return HVD_OK;
}

int mxnet_array_check_residual(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                               size_t count, hvd_error *err) {
    int64_t dims[HVD_MAX_DIMS];
    hvd_tensor residual = {.name = name};
    size_t values = 1;
    HVD_TRY(mxnet_array_describe(api, array, &residual, dims, err));
    for (int i = 0; i < residual.ndim; i++) values *= (size_t)dims[i];
    if (residual.dtype == HVD_FLOAT32 && values == count) return HVD_OK;
    return error_set(err, HVD_INVALID,
                     "tensor '%s': expected a residual of %zu float32 values, got %zu of %s", name,
                     count, values, dtype_name(residual.dtype));
}

int mxnet_array_keep(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                     NDArrayHandle *own, hvd_error *err) {
    return api->shallow_copy(array, own) ? mxnet_failed(api, name, err) : HVD_OK;
}

/* If MXNet exports no symbols for oneDNN layouts, only get_data restores the plain layout, and
 * get_data waits until the array is free. An operation that holds the array must not wait for the
 * same array, so this function calls get_data before the operation is pushed. */
int mxnet_array_restore_layout(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                               hvd_error *err) {
    void *data;
    if (api->is_blocked) return HVD_OK;
    return api->wait_to_read(array) || api->get_data(array, &data) ? mxnet_failed(api, name, err)
                                                                   : HVD_OK;
}

/* An NDArray's first member is a shared pointer to its chunk. */
static void *chunk_of(NDArrayHandle array) { return *(void **)array; }

static int by_chunk(const void *a, const void *b) {
    const char *x = chunk_of(*(const NDArrayHandle *)a), *y = chunk_of(*(const NDArrayHandle *)b);
    return (x > y) - (x < y);
}

bool mxnet_array_any_share(NDArrayHandle *arrays, int n) {
    qsort(arrays, (size_t)n, sizeof *arrays, by_chunk);
    for (int i = 1; i < n; i++)
        if (chunk_of(arrays[i - 1]) == chunk_of(arrays[i])) return true;
    return false;
}

/* The second word of an NDArray points to the control block of libstdc++'s shared pointer: the
 * address of a virtual table, then the reference count. */
int hvd_mxnet_references(void *array) {
    const void *control = ((void **)array)[1];
    return ((const int *)control)[sizeof(void *) / sizeof(int)];
}

int mxnet_array_memory(const struct mxnet_api *api, NDArrayHandle array, const char *name,
                       void **data, hvd_error *err) {
    if (api->is_blocked && api->is_blocked(chunk_of(array))) api->unblock(chunk_of(array));
    return api->get_data(array, data) ? mxnet_failed(api, name, err) : HVD_OK;
}
