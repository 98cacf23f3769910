/* hvdlite's collectives as custom calls of XLA, for programs that each process runs by itself.
 *
 * A call starts one collective per operand and waits briefly. If the collectives take longer, the
 * call returns a future, and a new thread completes the future. So no XLA thread waits for long,
 * and ranks may reach the calls of a program in different orders. Compiled at the first use, with
 * the headers of the installed jaxlib. */
#include "functions.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#define API __attribute__((visibility("default")))

static const double BRIEFLY = 200e-6; /* seconds of the first wait */

struct call {
    const XLA_FFI_Api *api;
    XLA_FFI_Future *future;
    hvd_error failed;    /* the first error */
    int64_t count, done; /* numbers of collectives that have started and ended */
    hvd_handle *handles[];
};

/* global, because XLA calls a handler without an argument for the handler's own data */
static struct core core;
API void hvdlite_jax_call_begin(core_function (*find)(const char *)) { core = core_found(find); }

/* The arguments of a function of XLA; the first field is their size. */
#define ARGS(function, ...)                                                                        \
    &(XLA_FFI_##function##_Args){.struct_size = XLA_FFI_##function##_Args_STRUCT_SIZE, __VA_ARGS__}

static XLA_FFI_Error *failure(const XLA_FFI_Api *api, const char *text) {
    return api->XLA_FFI_Error_Create(
        ARGS(Error_Create, .message = text, .errc = XLA_FFI_Error_Code_UNKNOWN));
}

/* ---- ending ---- */
/* Waits for the collectives in turn, some seconds for each. False: one has not ended. */
static bool all_ended(struct call *c, double seconds) {
    for (; c->done < c->count; c->done++) {
        hvd_error err = {0};
        if (!core.hvd_finish(c->handles[c->done], seconds, &err)) return false;
        core.hvd_drop(c->handles[c->done]);
        if (!c->failed.code) c->failed = err;
    }
    return true;
}

/* Waits for all collectives. Returns NULL, or the first error. */
static XLA_FFI_Error *ended(struct call *c) {
    while (!all_ended(c, 1)) continue;
    if (c->failed.code) core.hvd_keep_failure(&c->failed);
    return c->failed.code ? failure(c->api, c->failed.text) : NULL;
}

static void *complete(void *call) {
    struct call *c = call;
    XLA_FFI_Error *error = ended(c);
    if (error)
        c->api->XLA_FFI_Future_SetError(ARGS(Future_SetError, .future = c->future, .error = error));
    else
        c->api->XLA_FFI_Future_SetAvailable(ARGS(Future_SetAvailable, .future = c->future));
    free(c);
    return NULL;
}

/* ---- starting ---- */
/* The attributes that calls.py passes. XLA sorts attributes by name. */
enum { CARRIERS, GROUP, KIND, NAME, OP, PARTS, ROOT, SCALES };

static const void *array_of(const XLA_FFI_CallFrame *frame, int attribute) {
    return ((const XLA_FFI_Array *)frame->attrs.attrs[attribute])->data;
}

static hvd_handle *start_one(const XLA_FFI_CallFrame *frame, int64_t i, bool only_check,
                             hvd_error *err) {
    const XLA_FFI_Buffer *in = frame->args.args[i], *out = frame->rets.rets[i];
    const XLA_FFI_ByteSpan *name = frame->attrs.attrs[NAME];
    const int32_t *dtypes = array_of(frame, CARRIERS), *parts = array_of(frame, PARTS);
    const double *scales = array_of(frame, SCALES);
    char full[HVD_MAX_NAME];
    snprintf(full, sizeof full, "%.*s[%d]", (int)name->len, name->ptr, (int)i);
    int64_t dims[HVD_MAX_DIMS + 1] = {0}; /* hvd_validate refuses more dimensions */
    for (int64_t d = 0; d <= in->rank && d < HVD_MAX_DIMS; d++)
        dims[d] = d < in->rank ? in->dims[d] : parts[i];
    hvd_tensor t = {.name = full, .dims = dims, .in = in->data, .out = out->data};
    t.kind = *(const int32_t *)array_of(frame, KIND);
    t.op = *(const int32_t *)array_of(frame, OP);
    t.root = *(const int32_t *)array_of(frame, ROOT);
    t.group = *(const int32_t *)array_of(frame, GROUP);
    t.dtype = dtypes[i];
    t.ndim = (int)in->rank + (parts[i] > 1);
    t.prescale = scales[0];
    t.postscale = scales[1];
    t.out_rows = out->rank ? out->dims[0] : 1;
    t.grouped = (int)frame->rets.size;
    t.queued = t.waited = 1;
    if (only_check) return core.hvd_validate(&t, err), NULL;
    return core.hvd_start(&t, err);
}

/* void, because jaxlib 0.12 has another name for the type of an extension */
static XLA_FFI_Error *tell_version(const void *extension) {
    XLA_FFI_Metadata *metadata = ((const XLA_FFI_Metadata_Extension *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return NULL;
}

API XLA_FFI_Error *hvdlite_jax_call(XLA_FFI_CallFrame *frame) {
    if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata)
        return tell_version(frame->extension_start);
    /* XLA may pass more operands, only so that the call runs after them */
    const int64_t count = frame->rets.size;
    struct call *c = calloc(1, sizeof *c + (size_t)count * sizeof *c->handles);
    if (!c) return failure(frame->api, "hvdlite.jax: no memory");
    c->api = frame->api;
    for (int64_t i = 0; i < count && !c->failed.code; i++) start_one(frame, i, true, &c->failed);
    while (c->count < count && !c->failed.code) {
        hvd_handle *handle = start_one(frame, c->count, false, &c->failed);
        if (handle) c->handles[c->count++] = handle;
    }
    XLA_FFI_Future_Create_Args made = {.struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE};
    XLA_FFI_Error *error = NULL;
    if (all_ended(c, BRIEFLY) || (error = c->api->XLA_FFI_Future_Create(&made))) {
        /* waits, because XLA reclaims the memory when this call returns */
        XLA_FFI_Error *first = ended(c);
        free(c);
        return first ? first : error;
    }
    c->future = frame->future = made.future;
    pthread_t thread;
    if (pthread_create(&thread, NULL, complete, c))
        complete(c); /* this thread waits, because no thread could be started */
    else
        pthread_detach(thread);
    return NULL;
}
