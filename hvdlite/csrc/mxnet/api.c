#define _GNU_SOURCE /* RTLD_NOLOAD */
#include "mxnet/api.h"

#include <dlfcn.h>
#include <string.h>

/* memcpy: ISO C has no cast from an object pointer to a function pointer. */
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
        {"MXGetLastError", &api->last_error},
    };
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!find(libmxnet, needed[i].name, needed[i].function))
            return error_set(err, HVD_UNSUPPORTED,
                             "this MXNet does not export %s: hvdlite needs MXNet 1.6 or later",
                             needed[i].name);
    /* MXNet 2.0 dropped the suffix Ex, which told them from an older MXNDArrayGetShape. */
    if (!find(libmxnet, "MXNDArrayGetShapeEx64", &api->get_shape) &&
        !find(libmxnet, "MXNDArrayGetShapeEx", &api->get_shape32) &&
        !find(libmxnet, "MXNDArrayGetShape64", &api->get_shape))
        return error_set(err, HVD_UNSUPPORTED, "this MXNet does not export MXNDArrayGetShapeEx");
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
                     "MXNet has not loaded libstdc++.so.6, whose exceptions carry errors to it");
}

int mxnet_api_find(struct mxnet_api *api, const char *libmxnet, hvd_error *err) {
    void *library = dlopen(libmxnet, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return error_set(err, HVD_UNSUPPORTED, "%s is not loaded: import mxnet first", libmxnet);
    HVD_TRY(find_functions(api, library, err));
    return find_exceptions(api, err);
}
