#include "mxnet/push.h"

#include "mxnet/operation.h"

#include <stdlib.h>
#include <string.h>

static const struct device APART = {CPU_SHARED, NOBODYS_DEVICE};
static const int AT_ONCE = ASYNC;

/* Keeps an array (or NULL) of the collective in a role. `described`: an array that has been checked
 * already. */
static int keep_array(struct collective *m, enum array role, NDArrayHandle array,
                      NDArrayHandle described, hvd_error *err) {
    if (!array) return HVD_OK;
    const struct mxnet_api *api = &m->op->lib->api;
    const char *name = m->tensor.request.name;
    if (array != described) HVD_TRY(mxnet_array_check_storage(api, array, name, err));
    HVD_TRY(mxnet_array_restore_layout(api, array, name, err));
    return mxnet_array_keep(api, array, name, &m->arrays[role], err);
}

/* Fills in the collective's tensor from `tensor` and the array. */
static int describe(struct collective *m, NDArrayHandle array, const hvd_tensor *tensor,
                    hvd_error *err) {
    int64_t dims[HVD_MAX_DIMS];
    hvd_tensor whole = *tensor;
    HVD_TRY(mxnet_array_describe(&m->op->lib->api, array, &whole, dims, err));
    HVD_TRY(hvd_prepare(&whole, &m->tensor, err));
    m->group = tensor->group;
    m->tensor.complete = operation_collective_ended;
    m->tensor.arg = m;
    return HVD_OK;
}

static int prepare(struct collective *m, const hvd_mxnet_work *work, hvd_error *err) {
    NDArrayHandle source = work->in ? work->in : work->out;
    HVD_TRY(describe(m, source, work->tensor, err));
    if (work->residual)
        HVD_TRY(mxnet_array_check_residual(&m->op->lib->api, work->residual, work->tensor->name,
                                           request_count(&m->tensor.request), err));
    HVD_TRY(keep_array(m, OUT, work->out, source, err));
    HVD_TRY(keep_array(m, IN, work->in, source, err));
    return keep_array(m, RESIDUAL, work->residual, source, err);
}

static int new_prepared(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, struct operation **out,
                        hvd_error *err) {
    HVD_TRY(operation_new(lib, n, out, err));
    for (int i = 0; i < n; i++) {
        int code = prepare(&(*out)->collectives[i], &works[i], err);
        if (!code) continue;
        operation_end(*out);
        return code;
    }
    return HVD_OK;
}

int hvd_mxnet_validate(hvd_mxnet *lib, void *array, const hvd_tensor *tensor, hvd_error *err) {
    int64_t dims[HVD_MAX_DIMS];
    hvd_tensor whole = *tensor;
    HVD_TRY(mxnet_array_describe(&lib->api, array, &whole, dims, err));
    return hvd_validate(&whole, err);
}

static int arrays_of(const struct operation *op, NDArrayHandle *arrays) {
    int count = 0;
    for (int i = 0; i < op->n; i++)
        for (int j = 0; j < ARRAYS; j++)
            if (op->collectives[i].arrays[j]) arrays[count++] = op->collectives[i].arrays[j];
    for (int i = 0; i < op->nheld; i++) arrays[count++] = op->held[i].array;
    return count;
}

static bool is_coded(const struct operation *op) {
    for (int i = 0; i < op->n; i++)
        if (op->collectives[i].tensor.request.codec.kind != HVD_CODEC_NONE) return true;
    return false;
}

/* Gives the operation to MXNet, which frees it even if the push fails. No two arrays may share
 * memory. The push declares all arrays as written, because hvdlite changes residuals, and sometimes
 * the layout of an input. An operation that only submits its tensors runs on this thread as soon as
 * no other operation uses its arrays. An operation that also encodes runs on MXNet's workers,
 * because encoding takes longer. */
static int push(struct operation *op, NDArrayHandle *arrays, int n, hvd_error *err) {
    static const struct device SHARED = {CPU, 0};
    static const int BY_WORKERS = CPU_PRIORITIZED;
    hvd_mxnet *lib = op->lib;
    bool coded = is_coded(op);
    err->code = HVD_OK;
    op->pushed = true;
    operation_enter(op);
    if (lib->naive) op->report = err;
    if (lib->api.push(lib->function, op, operation_end, coded ? &SHARED : &APART, NULL, 0, arrays,
                      n, coded ? &BY_WORKERS : &AT_ONCE, op->collectives[0].tensor.request.priority,
                      "hvdlite", false))
        return error_set(err, HVD_INTERNAL, "MXNet refused the operation: %s",
                         lib->api.last_error());
    return lib->naive ? err->code : HVD_OK;
}

/* Pushes each collective as a separate operation, in order. */
static int push_apart(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err) {
    int code = HVD_OK;
    for (int i = 0; i < n && !code; i++) code = hvd_mxnet_push(lib, &works[i], 1, err);
    return code;
}

static int push_one(hvd_mxnet *lib, const hvd_mxnet_work *work, hvd_error *err) {
    struct operation *op = NULL;
    NDArrayHandle arrays[ARRAYS];
    HVD_TRY(new_prepared(lib, work, 1, &op, err));
    return push(op, arrays, arrays_of(op, arrays), err);
}

/* ---- keeping arrays alive ---- */

static int describe_held(const struct operation *op, NDArrayHandle array, size_t *bytes,
                         hvd_error *err) {
    int64_t dims[HVD_MAX_DIMS];
    hvd_tensor whole = {.name = op->collectives[0].tensor.request.name};
    HVD_TRY(mxnet_array_describe(&op->lib->api, array, &whole, dims, err));
    HVD_TRY(mxnet_array_restore_layout(&op->lib->api, array, whole.name, err));
    *bytes = dtype_size(whole.dtype);
    for (int i = 0; i < whole.ndim; i++) *bytes *= (size_t)dims[i];
    return HVD_OK;
}

static int hold_one(struct operation *op, const hvd_mxnet_held *from, struct host_range **view,
                    hvd_error *err) {
    struct tensor *tensor = &op->collectives[from->work].tensor;
    struct held *to = &op->held[op->nheld];
    size_t bytes;
    HVD_TRY(describe_held(op, from->array, &bytes, err));
    HVD_TRY(mxnet_array_keep(&op->lib->api, from->array, tensor->request.name, &to->array, err));
    to->view = NULL;
    op->nheld++;
    if (!from->memory) return HVD_OK;
    to->view = (*view)++;
    *to->view = (struct host_range){from->memory, NULL, bytes};
    if (!tensor->nviews++) tensor->views = to->view;
    return HVD_OK;
}

static int hold(struct operation *op, const hvd_mxnet_held *held, int n, hvd_error *err) {
    op->held = malloc((size_t)n * sizeof *op->held);
    op->views = malloc((size_t)n * sizeof *op->views);
    if (!op->held || !op->views)
        return error_set(err, HVD_NO_MEMORY, "no memory to hold %d arrays", n);
    struct host_range *view = op->views;
    for (int i = 0; i < n; i++) HVD_TRY(hold_one(op, &held[i], &view, err));
    return HVD_OK;
}

/* If arrays share memory, the collectives are pushed one by one, or refused if the operation also
 * holds arrays. */
int hvd_mxnet_push_holding(hvd_mxnet *lib, const hvd_mxnet_work *works, int n,
                           const hvd_mxnet_held *held, int nheld, hvd_error *err) {
    struct operation *op = NULL;
    HVD_TRY(new_prepared(lib, works, n, &op, err));
    NDArrayHandle *arrays = malloc((size_t)(n * ARRAYS + nheld) * sizeof *arrays);
    int code =
        arrays ? HVD_OK : error_set(err, HVD_NO_MEMORY, "no memory for a group of %d tensors", n);
    if (!code && nheld) code = hold(op, held, nheld, err);
    int count = code ? 0 : arrays_of(op, arrays);
    bool share = count && mxnet_array_any_share(arrays, count);
    if (share && nheld)
        code = error_set(err, HVD_INVALID,
                         "tensor '%s': two arrays share memory: expected separate memory for each",
                         op->collectives[0].tensor.request.name);
    if (code || share) operation_end(op);
    if (!code) code = share ? push_apart(lib, works, n, err) : push(op, arrays, count, err);
    free(arrays);
    return code;
}

int hvd_mxnet_push(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err) {
    return n == 1 ? push_one(lib, works, err) : hvd_mxnet_push_holding(lib, works, n, NULL, 0, err);
}

int hvd_mxnet_push_in_place(hvd_mxnet *lib, const hvd_tensor *tensor, uintptr_t array,
                            hvd_error *err) {
    return push_one(lib, &(hvd_mxnet_work){.out = (void *)array, .tensor = tensor}, err);
}

int hvd_mxnet_is_recording(hvd_mxnet *lib) {
    bool recording = false;
    (void)lib->api.is_recording(&recording); /* only reads a variable of the thread */
    return recording;
}

int hvd_mxnet_waiting(hvd_mxnet *lib) { return atomic_load(&lib->waiting); }

/* ---- watching ---- */

struct hvd_mxnet_watch {
    atomic_int users; /* number of users: MXNet, until its operation ends, and the caller */
};

static void drop(void *param) {
    hvd_mxnet_watch *w = param;
    if (atomic_fetch_sub(&w->users, 1) == 1) free(w);
}

static void do_nothing(void *run_context, void *param) {
    (void)run_context;
    (void)param;
}

hvd_mxnet_watch *hvd_mxnet_watch_start(hvd_mxnet *lib, void **arrays, int n, hvd_error *err) {
    const struct mxnet_api *api = &lib->api;
    hvd_mxnet_watch *w = malloc(sizeof *w);
    if (!w) {
        error_set(err, HVD_NO_MEMORY, "no memory to watch %d arrays", n);
        return NULL;
    }
    atomic_init(&w->users, 2);
    if (api->push_sync(do_nothing, w, drop, &APART, arrays, n, NULL, 0, &AT_ONCE, 0,
                       "hvdlite_watch") == 0)
        return w;
    error_set(err, HVD_INTERNAL, "MXNet refused the operation: %s", api->last_error());
    drop(w); /* MXNet has already dropped its reference */
    return NULL;
}

int hvd_mxnet_watch_done(hvd_mxnet_watch *w) { return atomic_load(&w->users) == 1; }

void hvd_mxnet_watch_end(hvd_mxnet_watch *w) { drop(w); }

/* ---- opening ---- */

int hvd_mxnet_open(hvd_mxnet **out, const char *libmxnet, int callback_arguments, int naive,
                   hvd_error *err) {
    struct mxnet_api api = {0};
    async_function *three = operation_run3;
    async_function4 *four = operation_run4;
    HVD_TRY(mxnet_api_find(&api, libmxnet, err));
    hvd_mxnet *lib = calloc(1, sizeof *lib);
    if (!lib) return error_set(err, HVD_NO_MEMORY, "no memory for the MXNet binding");
    lib->api = api;
    lib->naive = naive != 0;
    memcpy(&lib->function, callback_arguments == 4 ? (void *)&four : (void *)&three,
           sizeof lib->function);
    mutex_init(&lib->reporting);
    mutex_init(&lib->freeing);
    queues_init(&lib->queues);
    error_set(&lib->no_memory, HVD_NO_MEMORY,
              "a collective has failed, and there is no memory to say why");
    *out = lib;
    return HVD_OK;
}
