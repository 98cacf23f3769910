#include "mxnet_engine.h"

#include "mxnet_api.h"
#include "sync.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct hvd_mxnet {
    struct mxnet_api api;
    void *function; /* run3 or run4 */
    bool naive;
    atomic_int waiting;       /* operations pushed and not yet run */
    struct monitor reporting; /* MXNet's list of exceptions has no lock: report one at a time */
};

enum array { OUT, IN, RESIDUAL, ARRAYS };

/* One pushed operation; MXNet's deleter frees it, inside the completion at the earliest. */
struct operation {
    hvd_mxnet *lib;
    NDArrayHandle arrays[ARRAYS]; /* our own: the user's may be gone when we run. NULL: not given */
    hvd_tensor tensor;
    char name[HVD_MAX_NAME];
    int64_t dims[HVD_MAX_DIMS];
    int64_t *splits;
    struct on_complete done;
    bool ran;          /* false when MXNet drops it: an array that it writes to has failed */
    hvd_error *report; /* the naive engine ignores errors: the pusher, who waits, reads it here */
};

/* ---- running: on MXNet's threads and on the engine thread ---- */

static void complete_with_error(const struct operation *op, const hvd_error *error) {
    _Alignas(16) unsigned char exception[64] = {0};
    hvd_mxnet *lib = op->lib;
    struct on_complete done = op->done; /* the call may free the operation */
    monitor_lock(&lib->reporting);
    lib->api.make_error(exception, error->text);
    done.call(done.engine, done.param, exception);
    lib->api.destroy_error(exception);
    monitor_unlock(&lib->reporting);
}

static void complete(void *arg, const hvd_error *error) {
    struct operation *op = arg;
    struct on_complete done = op->done;
    if (error && op->report) *op->report = *error;
    if (error && !op->lib->naive)
        complete_with_error(op, error);
    else
        done.call(done.engine, done.param, NULL);
}

/* NDArray's first member is the shared pointer to its chunk. */
static void *chunk_of(NDArrayHandle array) { return *(void **)array; }

/* The array's memory in plain layout; only here, where MXNet grants us the array, does it hold
 * still. */
static int memory_of(hvd_mxnet *lib, NDArrayHandle array, const char *name, void **data,
                     hvd_error *err) {
    if (lib->api.is_blocked && lib->api.is_blocked(chunk_of(array)))
        lib->api.unblock(chunk_of(array));
    if (lib->api.get_data(array, data))
        return error_set(err, HVD_INTERNAL, "tensor '%s': MXNet gives no data: %s", name,
                         lib->api.last_error());
    return HVD_OK;
}

static int submit(struct operation *op, hvd_error *err) {
    void *data[ARRAYS] = {NULL};
    for (int i = 0; i < ARRAYS; i++)
        if (op->arrays[i]) HVD_TRY(memory_of(op->lib, op->arrays[i], op->name, &data[i], err));
    op->tensor.in = op->arrays[IN] ? data[IN] : data[OUT];
    op->tensor.out = data[OUT];
    op->tensor.residual = data[RESIDUAL];
    return hvd_submit(&op->tensor, complete, op, err);
}

static void run3(void *run_context, struct on_complete *done, void *param) {
    (void)run_context;
    struct operation *op = param;
    op->done = *done; /* theirs is on a stack */
    op->ran = true;
    hvd_mxnet *lib = op->lib; /* the operation may be gone when it is submitted */
    hvd_error err;
    if (submit(op, &err)) complete(op, &err);
    atomic_fetch_sub(&lib->waiting, 1);
}

static void run4(void *run_context, void *on_start, struct on_complete *done, void *param) {
    (void)on_start; /* does nothing on CPUs */
    run3(run_context, done, param);
}

static void free_operation(void *param) {
    struct operation *op = param;
    if (!op->ran) atomic_fetch_sub(&op->lib->waiting, 1);
    for (int i = 0; i < ARRAYS; i++)
        if (op->arrays[i]) op->lib->api.release(op->arrays[i]);
    free(op->splits);
    free(op);
}

/* ---- pushing: on the caller's thread ---- */

static int mxnet_failed(const hvd_mxnet *lib, const char *name, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "tensor '%s': MXNet says: %s", name, lib->api.last_error());
}

static int translate_dtype(int flag, const char *name, int *dtype, hvd_error *err) {
    static const signed char DTYPES[] = {
        /* by mshadow's type flag */
        HVD_FLOAT32, HVD_FLOAT64, HVD_FLOAT16, HVD_UINT8, HVD_INT32, HVD_INT8,    HVD_INT64,
        HVD_BOOL,    -1,          -1,          -1,        -1,        HVD_BFLOAT16};
    bool known = flag >= 0 && flag < (int)sizeof DTYPES && DTYPES[flag] >= 0;
    if (known) *dtype = DTYPES[flag];
    return known
               ? HVD_OK
               : error_set(err, HVD_UNSUPPORTED,
                           "tensor '%s' has a dtype (MXNet's type flag %d) that hvdlite does not "
                           "handle: cast it to "
                           "float16, bfloat16, float32, float64, uint8, int8, int32, int64 or bool",
                           name, flag);
}

static int check_storage(const hvd_mxnet *lib, NDArrayHandle array, const char *name,
                         hvd_error *err) {
    int storage, device, id;
    if (lib->api.get_storage_type(array, &storage) || lib->api.get_context(array, &device, &id))
        return mxnet_failed(lib, name, err);
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
                         "tensor '%s' lies on device %d of type %d: expected a CPU array; copy it "
                         "with as_in_context("
                         "mx.cpu())",
                         name, id, device);
    return HVD_OK;
}

/* The shape's buffer is MXNet's, for this thread until its next call. */
static int read_shape(const hvd_mxnet *lib, NDArrayHandle array, const char *name, int *rank,
                      int64_t sizes[HVD_MAX_DIMS], hvd_error *err) {
    int ndim = 0;
    const int64_t *dims = NULL;
    const int *dims32 = NULL;
    if (lib->api.get_shape ? lib->api.get_shape(array, &ndim, &dims)
                           : lib->api.get_shape32(array, &ndim, &dims32))
        return mxnet_failed(lib, name, err);
    if (ndim < 0 || ndim > HVD_MAX_DIMS)
        return error_set(err, HVD_UNSUPPORTED, "tensor '%s' has %d dimensions: expected 0 to %d",
                         name, ndim, HVD_MAX_DIMS);
    for (int i = 0; i < ndim; i++) sizes[i] = dims ? dims[i] : dims32[i];
    *rank = ndim;
    return HVD_OK;
}

/* Fills in what the array knows, and has all of it checked. */
static int describe(struct operation *op, NDArrayHandle array, hvd_error *err) {
    int flag;
    HVD_TRY(check_storage(op->lib, array, op->name, err));
    if (op->lib->api.get_dtype(array, &flag)) return mxnet_failed(op->lib, op->name, err);
    HVD_TRY(translate_dtype(flag, op->name, &op->tensor.dtype, err));
    HVD_TRY(read_shape(op->lib, array, op->name, &op->tensor.ndim, op->dims, err));
    op->tensor.dims = op->dims;
    return hvd_validate(&op->tensor, err);
}

/* Without the symbols for oneDNN layouts, get_data mends the layout, but must not be called by an
 * operation that holds the array (it waits for it): so wait for the array here, before pushing. */
static int settle_layout(const hvd_mxnet *lib, NDArrayHandle array, const char *name,
                         hvd_error *err) {
    void *data;
    if (lib->api.is_blocked) return HVD_OK;
    return lib->api.wait_to_read(array) || lib->api.get_data(array, &data)
               ? mxnet_failed(lib, name, err)
               : HVD_OK;
}

static int64_t count_of(int ndim, const int64_t *dims) {
    int64_t count = 1;
    for (int i = 0; i < ndim; i++) count *= dims[i];
    return count;
}

static int check_residual(const struct operation *op, NDArrayHandle residual, hvd_error *err) {
    int64_t dims[HVD_MAX_DIMS];
    int ndim, flag, dtype = -1;
    if (op->lib->api.get_dtype(residual, &flag)) return mxnet_failed(op->lib, op->name, err);
    HVD_TRY(translate_dtype(flag, op->name, &dtype, err));
    HVD_TRY(read_shape(op->lib, residual, op->name, &ndim, dims, err));
    if (dtype == HVD_FLOAT32 && count_of(ndim, dims) == count_of(op->tensor.ndim, op->dims))
        return HVD_OK;
    return error_set(err, HVD_INVALID,
                     "tensor '%s': its residual has not as many float32 values as it has itself",
                     op->name);
}

/* The array in `place` of the operation; NULL: none. */
static int hold(struct operation *op, enum array place, NDArrayHandle array, hvd_error *err) {
    if (!array) return HVD_OK;
    HVD_TRY(check_storage(op->lib, array, op->name, err));
    HVD_TRY(settle_layout(op->lib, array, op->name, err));
    return op->lib->api.shallow_copy(array, &op->arrays[place])
               ? mxnet_failed(op->lib, op->name, err)
               : HVD_OK;
}

static int prepare(struct operation *op, const NDArrayHandle arrays[ARRAYS], hvd_error *err) {
    HVD_TRY(describe(op, arrays[IN] ? arrays[IN] : arrays[OUT], err));
    if (arrays[RESIDUAL]) HVD_TRY(check_residual(op, arrays[RESIDUAL], err));
    for (int i = 0; i < ARRAYS; i++) HVD_TRY(hold(op, (enum array)i, arrays[i], err));
    return HVD_OK;
}

static int copy_splits(struct operation *op, const hvd_tensor *tensor) {
    size_t bytes = tensor->nsplits * sizeof *op->splits;
    if (!bytes) return HVD_OK;
    op->splits = malloc(bytes);
    if (!op->splits) return HVD_NO_MEMORY;
    memcpy(op->splits, tensor->splits, bytes);
    return HVD_OK;
}

static int new_operation(hvd_mxnet *lib, const hvd_tensor *tensor, struct operation **out,
                         hvd_error *err) {
    if (strlen(tensor->name) >= HVD_MAX_NAME) return hvd_validate(tensor, err);
    struct operation *op = calloc(1, sizeof *op);
    if (!op) return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", tensor->name);
    if (copy_splits(op, tensor)) {
        free(op);
        return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", tensor->name);
    }
    op->lib = lib;
    atomic_fetch_add(&lib->waiting, 1);
    op->tensor = *tensor;
    strcpy(op->name, tensor->name);
    op->tensor.name = op->name;
    op->tensor.splits = op->splits;
    *out = op;
    return HVD_OK;
}

int hvd_mxnet_validate(hvd_mxnet *lib, void *array, const hvd_tensor *tensor, hvd_error *err) {
    struct operation *op = NULL;
    HVD_TRY(new_operation(lib, tensor, &op, err));
    int code = describe(op, array, err);
    free_operation(op);
    return code;
}

/* Hands the operation to MXNet, which frees it from here on, also when the push fails. What it reads it
 * also writes to: the layout may have to be mended, the residual changes. All are different arrays.
 * To submit is a moment's work, to encode is more: that is left to MXNet's workers. */
static int push(hvd_mxnet *lib, struct operation *op, hvd_error *err) {
    static const struct device APART = {CPU, NOBODYS_DEVICE}, SHARED = {CPU, 0};
    static const int AT_ONCE = ASYNC, BY_WORKERS = CPU_PRIORITIZED;
    bool coded = op->tensor.codec != HVD_CODEC_NONE;
    NDArrayHandle writes[ARRAYS];
    int n = 0;
    for (int i = 0; i < ARRAYS; i++)
        if (op->arrays[i]) writes[n++] = op->arrays[i];
    err->code = HVD_OK;
    if (lib->naive) op->report = err;
    if (lib->api.push(lib->function, op, free_operation, coded ? &SHARED : &APART, NULL, 0, writes,
                      n, coded ? &BY_WORKERS : &AT_ONCE, op->tensor.priority, "hvdlite", false))
        return error_set(err, HVD_INTERNAL, "MXNet takes no operation: %s", lib->api.last_error());
    return lib->naive ? err->code : HVD_OK;
}

/* The shared pointer's second word is libstdc++'s control block: a virtual table, then the count. */
int hvd_mxnet_references(void *array) {
    const void *control = ((void **)array)[1];
    return ((const int *)control)[sizeof(void *) / sizeof(int)];
}

int hvd_mxnet_push(hvd_mxnet *lib, void *in, void *out, void *residual, const hvd_tensor *tensor,
                   hvd_error *err) {
    const NDArrayHandle arrays[ARRAYS] = {[OUT] = out, [IN] = in, [RESIDUAL] = residual};
    struct operation *op = NULL;
    HVD_TRY(new_operation(lib, tensor, &op, err));
    int code = prepare(op, arrays, err);
    if (!code) return push(lib, op, err);
    free_operation(op);
    return code;
}

int hvd_mxnet_waiting(hvd_mxnet *lib) { return atomic_load(&lib->waiting); }

/* ---- opening ---- */

int hvd_mxnet_open(hvd_mxnet **out, const char *libmxnet, int three_or_four, int naive,
                   hvd_error *err) {
    hvd_mxnet *lib = calloc(1, sizeof *lib);
    if (!lib) return error_set(err, HVD_NO_MEMORY, "no memory for the MXNet binding");
    monitor_init(&lib->reporting);
    lib->naive = naive != 0;
    async_function *three = run3;
    async_function4 *four = run4;
    memcpy(&lib->function, three_or_four == 4 ? (void *)&four : (void *)&three,
           sizeof lib->function);
    int code = mxnet_api_find(&lib->api, libmxnet, err);
    if (code)
        hvd_mxnet_close(lib);
    else
        *out = lib;
    return code;
}

void hvd_mxnet_close(hvd_mxnet *lib) {
    monitor_destroy(&lib->reporting);
    free(lib);
}
