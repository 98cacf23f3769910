/* hvdlite's collectives as custom calls of XLA, for programs that each process runs by itself.
 *
 * A call starts one collective per operand and waits briefly. If the collectives take longer, the
 * call returns a future, and a new thread completes the future. So no XLA thread waits for long,
 * and ranks may reach the calls of a program in different orders. hvdlite compiles this file at its
 * first use, with the headers of the installed jaxlib. */
#include "functions.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "xla/ffi/api/c_api.h"

#define API __attribute__((visibility("default")))

/* Seconds of the first wait. Chosen, not measured: within this time a small collective on one
 * host usually ends, so its call needs no thread. */
static const double BRIEFLY = 200e-6;

struct call {
    const XLA_FFI_Api *api;
    XLA_FFI_Future *future;
    hvd_error failed;    /* the first error */
    int64_t count, done; /* how many collectives have started (count) and ended (done) */
    hvd_handle *handles[];
};

/* This struct is global, because XLA passes no user data to a handler. */
static struct core core;

/* The arguments of a function of XLA; the first field is their size. */
#define ARGS(function, ...)                                                                        \
    &(XLA_FFI_##function##_Args){.struct_size = XLA_FFI_##function##_Args_STRUCT_SIZE, __VA_ARGS__}

static XLA_FFI_Error *new_error(const XLA_FFI_Api *api, const char *text) {
    return api->XLA_FFI_Error_Create(
        ARGS(Error_Create, .message = text, .errc = XLA_FFI_Error_Code_UNKNOWN));
}

/* ---- ending ---- */
/* Waits at most `seconds` for each of the call's collectives; false: one of them has not ended. */
static bool wait_in_turn(struct call *c, double seconds) {
    for (; c->done < c->count; c->done++) {
        hvd_error err = {0};
        if (!core.hvd_finish(c->handles[c->done], seconds, &err)) return false;
        core.hvd_drop(c->handles[c->done]);
        if (!c->failed.code) c->failed = err;
    }
    return true;
}

/* Waits for all collectives of the call. Returns NULL, or the first error. */
static XLA_FFI_Error *wait_for_all(struct call *c) {
    while (!wait_in_turn(c, 1)) continue;
    if (c->failed.code) core.hvd_keep_failure(&c->failed);
    return c->failed.code ? new_error(c->api, c->failed.text) : NULL;
}

static void *complete_future(void *call) {
    struct call *c = call;
    XLA_FFI_Error *error = wait_for_all(c);
    if (error)
        c->api->XLA_FFI_Future_SetError(ARGS(Future_SetError, .future = c->future, .error = error));
    else
        c->api->XLA_FFI_Future_SetAvailable(ARGS(Future_SetAvailable, .future = c->future));
    free(c);
    return NULL;
}

/* ---- starting ---- */
/* The attributes that calls.py gives to a call: arrays with their type and size, and a string. XLA
 * sorts attributes by name. */
/* clang-format off */
#define ATTRIBUTES(ROW) \
    ROW(carriers, int32_t, S32, count) ROW(group, int32_t, S32, 1) ROW(kind, int32_t, S32, 1) \
    ROW(name, XLA_FFI_ByteSpan, INVALID, 0) ROW(op, int32_t, S32, 1) ROW(root, int32_t, S32, 1) \
    ROW(scales, double, F64, 2)
#define MEMBER(name, type, ...) const type *name;
struct attributes { ATTRIBUTES(MEMBER) };
#define TEXT(name, type, ...) #type " " #name "; "
/* clang-format on */

API void hvdlite_jax_call_begin(core_finder *find) { core = core_found(find); }

/* Returns the values of attribute `i`. NULL: this attribute has another name, type or size. */
static const void *values_of(const XLA_FFI_Attrs *attrs, int64_t i, const char *name,
                             XLA_FFI_DataType dtype, int64_t size) {
    if (i >= attrs->size || attrs->names[i]->len != strlen(name)) return NULL;
    if (memcmp(attrs->names[i]->ptr, name, strlen(name))) return NULL;
    if (!size) return attrs->types[i] == XLA_FFI_AttrType_STRING ? attrs->attrs[i] : NULL;
    const XLA_FFI_Array *array = attrs->attrs[i];
    if (attrs->types[i] != XLA_FFI_AttrType_ARRAY || array->dtype != dtype) return NULL;
    return (int64_t)array->size == size ? array->data : NULL;
}

/* Returns false if the attributes differ from ATTRIBUTES, because another version of hvdlite has
 * exported the program. */
static bool read_attributes(struct attributes *to, const XLA_FFI_Attrs *attrs, int64_t count) {
    int64_t i = 0;
#define READ(name, type, dtype, size)                                                              \
    if (!(to->name = values_of(attrs, i++, #name, XLA_FFI_DataType_##dtype, size))) return false;
    ATTRIBUTES(READ)
    return i == attrs->size;
}

static hvd_handle *plan_tensor(const XLA_FFI_CallFrame *frame, const struct attributes *a,
                               int64_t i, hvd_error *err) {
    const XLA_FFI_Buffer *in = frame->args.args[i], *out = frame->rets.rets[i];
    const bool is_complex = in->dtype == XLA_FFI_DataType_C64 || in->dtype == XLA_FFI_DataType_C128;
    char full[HVD_MAX_NAME + 1]; /* hvd_plan refuses a name that fills it */
    snprintf(full, sizeof full, "%.*s[%d]", (int)a->name->len, a->name->ptr, (int)i);
    int64_t dims[HVD_MAX_DIMS + 1] = {0}; /* hvd_plan refuses more dimensions */
    for (int64_t d = 0; d <= in->rank && d < HVD_MAX_DIMS; d++)
        dims[d] = d < in->rank ? in->dims[d] : 2;
    hvd_tensor t = {.name = full, .dims = dims};
    t.kind = *a->kind, t.op = *a->op, t.root = *a->root, t.group = *a->group;
    t.dtype = a->carriers[i], t.ndim = (int)in->rank + is_complex;
    t.prescale = a->scales[0], t.postscale = a->scales[1];
    t.out_rows = out->rank ? out->dims[0] : 1, t.grouped = (int)frame->rets.size;
    t.queued = t.waited = 1;
    return core.hvd_plan(&t, err);
}

/* void, because jaxlib 0.12 has another name for the type of an extension */
static XLA_FFI_Error *tell_version(void *extension) {
    XLA_FFI_Api_Version *to = &((XLA_FFI_Metadata_Extension *)extension)->metadata->api_version;
    to->major_version = XLA_FFI_API_MAJOR, to->minor_version = XLA_FFI_API_MINOR;
    return NULL;
}

API XLA_FFI_Error *hvdlite_jax_call(XLA_FFI_CallFrame *frame) {
    if (frame->extension_start && frame->extension_start->type == XLA_FFI_Extension_Metadata)
        return tell_version(frame->extension_start);
    /* This call reads one operand for each result. XLA computes the other operands before it. */
    const int64_t count = frame->rets.size;
    struct attributes a;
    if (!read_attributes(&a, &frame->attrs, count))
        return new_error(frame->api,
                         "hvdlite.jax: another version of hvdlite exported this program: "
                         "export it again, with the attributes " ATTRIBUTES(TEXT));
    struct call *c = calloc(1, sizeof *c + (size_t)count * sizeof *c->handles);
    if (!c) return new_error(frame->api, "hvdlite.jax: no memory");
    c->api = frame->api;
    /* Make all plans first: a tensor that runs would wait for a tensor whose plan has failed. */
    while (c->count < count &&
           (c->handles[c->count] = plan_tensor(frame, &a, c->count, &c->failed)))
        c->count++;
    while (c->failed.code && c->count) core.hvd_drop(c->handles[--c->count]);
    for (int64_t i = 0; i < c->count; i++) {
        const XLA_FFI_Buffer *in = frame->args.args[i], *out = frame->rets.rets[i];
        core.hvd_run(c->handles[i], in->data, out->data, -1);
    }
    XLA_FFI_Future_Create_Args made = {.struct_size = XLA_FFI_Future_Create_Args_STRUCT_SIZE};
    XLA_FFI_Error *no_future = NULL;
    if (wait_in_turn(c, BRIEFLY) || (no_future = c->api->XLA_FFI_Future_Create(&made))) {
        /* waits, because XLA reclaims the memory when this call returns */
        XLA_FFI_Error *error = wait_for_all(c);
        if (no_future) c->api->XLA_FFI_Error_Destroy(ARGS(Error_Destroy, .error = no_future));
        free(c);
        return error;
    }
    c->future = frame->future = made.future;
    pthread_t thread;
    if (pthread_create(&thread, NULL, complete_future, c))
        complete_future(c); /* no new thread is possible, so this one waits for the collectives */
    else
        pthread_detach(thread);
    return NULL;
}
