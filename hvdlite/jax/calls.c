/* hvdlite's collectives as custom calls of XLA, for programs that run on one process alone.
 *
 * A call starts one collective per operand, waits briefly, and then returns a future: no thread of
 * XLA's waits for long, so ranks may reach the calls of a program in different orders. The core's
 * thread must not run what XLA does next, so a thread of this library completes the futures.
 * Compiled against the headers of the installed jaxlib, at the first use. */
#include "core.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

/* seconds of the first wait, in which this thread does the core's work */
static const double BRIEFLY = 200e-6;

struct call {
    struct call *next; /* next call in the queue of completed calls */
    const XLA_FFI_Api *api;
    XLA_FFI_Future *future;
    atomic_int left;  /* unfinished collectives, plus 1 while watchers are being added */
    hvd_error failed; /* error of a collective that could not be started */
    int64_t count;
    hvd_handle *handles[];
};

/* XLA calls a handler without an argument of its own, so this library has its state here. */
static struct module {
    struct core core;
    pthread_mutex_t mutex; /* guards the queue of completed calls */
    pthread_cond_t filled;
    struct call *done, **done_end;
} module = {.mutex = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER};

/* ---- completing ---- */
static XLA_FFI_Error *failure(const XLA_FFI_Api *api, const char *text) {
    XLA_FFI_Error_Create_Args args = {.struct_size = XLA_FFI_Error_Create_Args_STRUCT_SIZE,
                                      .message = text,
                                      .errc = XLA_FFI_Error_Code_UNKNOWN};
    return api->XLA_FFI_Error_Create(&args);
}

/* Ends a call whose collectives are all done: NULL, or the error of the first one that failed. */
static XLA_FFI_Error *ended(struct call *c) {
    hvd_error err = {0}, first = c->failed;
    for (int64_t i = 0; i < c->count; i++) {
        module.core.hvd_finish(c->handles[i], 0, &err);
        module.core.hvd_drop(c->handles[i]);
        if (err.code && !first.code) first = err;
    }
    return first.code ? failure(c->api, first.text) : NULL;
}

static bool all_finished(struct call *c, double seconds) {
    for (int64_t i = 0; i < c->count; i++)
        if (!module.core.hvd_finish(c->handles[i], seconds, NULL)) return false;
    return true;
}

static void complete(struct call *c) {
    XLA_FFI_Error *error = ended(c);
    if (error) {
        XLA_FFI_Future_SetError_Args args = {.struct_size =
                                                 XLA_FFI_Future_SetError_Args_STRUCT_SIZE,
                                             .future = c->future,
                                             .error = error};
        c->api->XLA_FFI_Future_SetError(&args);
    } else {
        XLA_FFI_Future_SetAvailable_Args args = {
            .struct_size = XLA_FFI_Future_SetAvailable_Args_STRUCT_SIZE, .future = c->future};
        c->api->XLA_FFI_Future_SetAvailable(&args);
    }
    free(c);
}

static void *complete_all(void *unused) {
    for (;;) {
        pthread_mutex_lock(&module.mutex);
        while (!module.done) pthread_cond_wait(&module.filled, &module.mutex);
        struct call *c = module.done;
        if (!(module.done = c->next)) module.done_end = &module.done;
        pthread_mutex_unlock(&module.mutex);
        complete(c);
    }
    return unused;
}

/* Takes the core's functions and starts the thread that completes futures. Called once. 0, or an
 * errno. */
API int hvdlite_jax_call_begin(core_function (*find)(const char *)) {
    pthread_t thread;
    module.core = core_found(find);
    module.done_end = &module.done;
    int failed = pthread_create(&thread, NULL, complete_all, NULL);
    return failed ? failed : pthread_detach(thread);
}

static void one_done(void *arg) {
    struct call *c = arg;
    if (atomic_fetch_sub(&c->left, 1) > 1) return;
    pthread_mutex_lock(&module.mutex);
    c->next = NULL;
    *module.done_end = c;
    module.done_end = &c->next;
    pthread_cond_signal(&module.filled);
    pthread_mutex_unlock(&module.mutex);
}

/* ---- starting ---- */
static const void *attribute(const XLA_FFI_CallFrame *frame, const char *name) {
    for (int64_t i = 0; i < frame->attrs.size; i++) {
        const XLA_FFI_ByteSpan *found = frame->attrs.names[i];
        if (found->len == strlen(name) && !memcmp(found->ptr, name, found->len))
            return frame->attrs.attrs[i];
    }
    return NULL;
}
static const void *array_of(const XLA_FFI_CallFrame *frame, const char *name) {
    return ((const XLA_FFI_Array *)attribute(frame, name))->data;
}

/* Python gives kind, op, root and group, and per operand the core's dtype and the core's elements
 * in one of XLA's. */
static hvd_handle *start_one(const XLA_FFI_CallFrame *frame, int64_t i, bool only_check,
                             hvd_error *err) {
    const XLA_FFI_Buffer *in = frame->args.args[i], *out = frame->rets.rets[i];
    const XLA_FFI_ByteSpan *name = attribute(frame, "name");
    const int64_t *how = array_of(frame, "how"), *carrier = how + 4 + 2 * i, parts = carrier[1];
    const double *scales = array_of(frame, "scales");
    char full[HVD_MAX_NAME];
    snprintf(full, sizeof full, "%.*s[%d]", (int)name->len, name->ptr, (int)i);
    int64_t dims[HVD_MAX_DIMS + 1];
    if (in->rank >= HVD_MAX_DIMS)
        return err->code = HVD_INVALID,
               snprintf(err->text, sizeof err->text, "tensor '%s' has over %d dimensions", full,
                        HVD_MAX_DIMS - 1),
               NULL;
    for (int64_t d = 0; d < in->rank; d++) dims[d] = in->dims[d];
    dims[in->rank] = parts;
    hvd_tensor t = {.name = full,
                    .kind = (int)how[0],
                    .dtype = (int)carrier[0],
                    .op = (int)how[1],
                    .root = (int)how[2],
                    .group = (int)how[3],
                    .grouped = (int)frame->rets.size,
                    .prescale = scales[0],
                    .postscale = scales[1],
                    .ndim = (int)in->rank + (parts > 1),
                    .dims = dims,
                    .in = in->data,
                    .out = out->data,
                    .out_rows = out->rank ? out->dims[0] : 1,
                    .queued = 1,
                    .waited = 1};
    if (only_check) return module.core.hvd_validate(&t, err), NULL;
    return module.core.hvd_start(&t, err);
}

static XLA_FFI_Error *tell_version(XLA_FFI_Extension_Base *extension) {
    XLA_FFI_Metadata *metadata = ((XLA_FFI_Metadata_Extension *)extension)->metadata;
    metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    return NULL;
}

API XLA_FFI_Error *hvdlite_jax_call(XLA_FFI_CallFrame *frame) {
    XLA_FFI_Extension_Base *extension = frame->extension_start;
    if (extension && extension->type == XLA_FFI_Extension_Metadata) return tell_version(extension);
    const int64_t count = frame->rets.size; /* further operands only order the call after them */
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
    bool all_done = all_finished(c, BRIEFLY);
    if (!all_done && (error = frame->api->XLA_FFI_Future_Create(&made)))
        while (!(all_done = all_finished(c, 1))) continue; /* XLA takes its memory back */
    if (all_done) {
        XLA_FFI_Error *first = ended(c);
        free(c);
        return first ? first : error;
    }
    c->future = frame->future = made.future;
    atomic_init(&c->left, (int)c->count + 1);
    for (int64_t i = 0; i < c->count; i++) module.core.hvd_watch(c->handles[i], one_done, c);
    one_done(c);
    return NULL;
}
