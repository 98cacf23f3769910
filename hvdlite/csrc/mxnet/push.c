#include "mxnet/push.h"

#include "base/free_list.h"
#include "base/sync.h"
#include "engine/tensors.h"
#include "mxnet/array.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hvd_mxnet {
    struct mxnet_api api;
    void *function; /* run3 or run4 */
    bool naive;
    atomic_int waiting;       /* operations pushed and not yet run */
    struct monitor reporting; /* MXNet's list of exceptions has no lock: report one at a time */
    struct free_list memory;  /* of operations of one member */
    hvd_error no_memory;      /* what fails when there is none for its own error */
};

enum array { OUT, IN, RESIDUAL, ARRAYS };

/* One collective of an operation. */
struct member {
    struct operation *op;
    NDArrayHandle arrays[ARRAYS]; /* our own: the user's may be gone when we run. NULL: not given */
    int group;
    struct tensor tensor; /* with splits of its own */
};

/* What is pushed; MXNet's deleter ends it, inside the completion at the earliest. */
struct operation {
    hvd_mxnet *lib;
    struct on_complete done;
    bool pushed, ran;  /* pushed and not run: MXNet dropped it, as an array of its has failed */
    hvd_error *report; /* the naive engine ignores errors: the pusher, who waits, reads it here */
    hvd_error *error;  /* of all members that failed, NULL: none has; under lib->reporting */
    atomic_int left;   /* members that have not ended, and whoever submits them */
    int n;
    struct member members[];
};

/* ---- memory ---- */

static struct operation *get_memory(hvd_mxnet *lib, int n) {
    const size_t bytes = sizeof(struct operation) + (size_t)n * sizeof(struct member);
    return n > 1 ? malloc(bytes) : free_list_take(&lib->memory, bytes);
}

static void put_memory(struct operation *op) {
    if (op->error != &op->lib->no_memory) free(op->error);
    if (op->n > 1)
        free(op);
    else
        free_list_give(&op->lib->memory, op);
}

static void free_operation(struct operation *op) {
    for (int i = 0; i < op->n; i++) {
        struct member *m = &op->members[i];
        for (int j = 0; j < ARRAYS; j++)
            if (m->arrays[j]) op->lib->api.release(m->arrays[j]);
        free((void *)m->tensor.splits);
    }
    put_memory(op);
}

/* ---- running: on MXNet's threads and on the engine thread ---- */

static void complete_with_error(const struct operation *op) {
    _Alignas(16) unsigned char exception[64] = {0};
    hvd_mxnet *lib = op->lib;
    struct on_complete done = op->done; /* the call may free the operation */
    monitor_lock(&lib->reporting);
    lib->api.make_error(exception, op->error->text);
    done.call(done.engine, done.param, exception);
    lib->api.destroy_error(exception);
    monitor_unlock(&lib->reporting);
}

static void complete(struct operation *op) {
    struct on_complete done = op->done;
    if (op->error && op->report) *op->report = *op->error;
    if (op->error && !op->lib->naive)
        complete_with_error(op);
    else
        done.call(done.engine, done.param, NULL);
}

static void append_error(hvd_error *all, const hvd_error *error) {
    size_t used = strlen(all->text);
    snprintf(all->text + used, sizeof all->text - used, "%s%s", used ? "; " : "", error->text);
    all->code = error->code;
}

static void note_error(struct operation *op, const hvd_error *error) {
    hvd_error *no_memory = &op->lib->no_memory; /* of all operations: nothing is appended to it */
    monitor_lock(&op->lib->reporting);
    if (!op->error) op->error = calloc(1, sizeof *op->error);
    if (!op->error) op->error = no_memory;
    if (op->error != no_memory) append_error(op->error, error);
    monitor_unlock(&op->lib->reporting);
}

/* The last one to let go completes the operation, which may be gone after that; of what was dropped MXNet
 * raises the cause itself. */
static void let_go(struct operation *op) {
    if (atomic_fetch_sub(&op->left, 1) == 1) (op->ran ? complete : free_operation)(op);
}

static void member_ended(void *arg, const hvd_error *error) {
    struct member *m = arg;
    if (error) note_error(m->op, error);
    let_go(m->op);
}

static int submit(struct member *m, hvd_error *err) {
    struct tensor *tensor = &m->tensor;
    void *data[ARRAYS] = {NULL};
    for (int i = 0; i < ARRAYS; i++)
        if (m->arrays[i])
            HVD_TRY(mxnet_array_memory(&m->op->lib->api, m->arrays[i], tensor->request.name,
                                       &data[i], err));
    tensor->in = m->arrays[IN] ? data[IN] : data[OUT];
    tensor->out = data[OUT];
    tensor->residual = data[RESIDUAL];
    return hvd_submit(m->group, tensor, err);
}

static void run3(void *run_context, struct on_complete *done, void *param) {
    (void)run_context;
    struct operation *op = param;
    op->done = *done; /* theirs is on a stack */
    op->ran = true;
    hvd_mxnet *lib = op->lib; /* the operation may be gone when we have let go */
    int group = op->members[0].group;
    if (op->n > 1) hvd_hold(group, true);
    for (int i = 0; i < op->n; i++) {
        hvd_error err;
        if (submit(&op->members[i], &err)) member_ended(&op->members[i], &err);
    }
    if (op->n > 1) hvd_hold(group, false);
    let_go(op);
    atomic_fetch_sub(&lib->waiting, 1);
}

static void run4(void *run_context, void *on_start, struct on_complete *done, void *param) {
    (void)on_start; /* does nothing on CPUs */
    run3(run_context, done, param);
}

/* Else the other ranks would wait for what this one can't compute. */
static void tell_dropped(struct operation *op) {
    for (int i = 0; i < op->n; i++) {
        struct member *m = &op->members[i];
        hvd_error err; /* there is no job any more */
        m->tensor.request.failed = true;
        if (hvd_submit(m->group, &m->tensor, &err)) member_ended(m, &err);
    }
    let_go(op);
}

static void end_operation(void *param) {
    struct operation *op = param;
    if (!op->ran) atomic_fetch_sub(&op->lib->waiting, 1);
    if (op->pushed && !op->ran)
        tell_dropped(op);
    else
        free_operation(op);
}

/* ---- pushing: on the caller's thread ---- */

/* The array in `place` of the member; NULL: none. The described one has been checked. */
static int hold(struct member *m, enum array place, NDArrayHandle array, NDArrayHandle described,
                hvd_error *err) {
    if (!array) return HVD_OK;
    const struct mxnet_api *api = &m->op->lib->api;
    const char *name = m->tensor.request.name;
    if (array != described) HVD_TRY(mxnet_array_check_storage(api, array, name, err));
    HVD_TRY(mxnet_array_settle_layout(api, array, name, err));
    return api->shallow_copy(array, &m->arrays[place])
               ? error_set(err, HVD_INTERNAL, "tensor '%s': MXNet says: %s", name,
                           api->last_error())
               : HVD_OK;
}

/* Writes down what the tensor and the array say. */
static int describe(struct member *m, NDArrayHandle array, const hvd_tensor *tensor,
                    hvd_error *err) {
    int64_t dims[HVD_MAX_DIMS];
    hvd_tensor whole = *tensor;
    HVD_TRY(mxnet_array_describe(&m->op->lib->api, array, &whole, dims, err));
    HVD_TRY(hvd_prepare(&whole, &m->tensor, err));
    m->group = tensor->group;
    m->tensor.complete = member_ended;
    m->tensor.arg = m;
    return HVD_OK;
}

static int prepare(struct member *m, const hvd_mxnet_work *work, hvd_error *err) {
    NDArrayHandle source = work->in ? work->in : work->out;
    HVD_TRY(describe(m, source, work->tensor, err));
    if (work->residual)
        HVD_TRY(mxnet_array_check_residual(&m->op->lib->api, work->residual, work->tensor->name,
                                           request_count(&m->tensor.request), err));
    HVD_TRY(hold(m, OUT, work->out, source, err));
    HVD_TRY(hold(m, IN, work->in, source, err));
    return hold(m, RESIDUAL, work->residual, source, err);
}

static int new_operation(hvd_mxnet *lib, int n, struct operation **out, hvd_error *err) {
    struct operation *op = get_memory(lib, n);
    if (!op) return error_set(err, HVD_NO_MEMORY, "no memory for an operation on %d tensors", n);
    atomic_fetch_add(&lib->waiting, 1);
    *op = (struct operation){.lib = lib, .n = n};
    atomic_init(&op->left, n + 1);
    for (int i = 0; i < n; i++) { /* not all of it: the tensor is large, and written later */
        op->members[i].op = op;
        op->members[i].tensor.splits = NULL;
        memset(op->members[i].arrays, 0, sizeof op->members[i].arrays);
    }
    *out = op;
    return HVD_OK;
}

static int new_prepared(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, struct operation **out,
                        hvd_error *err) {
    HVD_TRY(new_operation(lib, n, out, err));
    for (int i = 0; i < n; i++) {
        int code = prepare(&(*out)->members[i], &works[i], err);
        if (!code) continue;
        end_operation(*out);
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
            if (op->members[i].arrays[j]) arrays[count++] = op->members[i].arrays[j];
    return count;
}

static bool is_coded(const struct operation *op) {
    for (int i = 0; i < op->n; i++)
        if (op->members[i].tensor.request.codec.kind != HVD_CODEC_NONE) return true;
    return false;
}

/* Hands the operation to MXNet, which frees it from here on, also when the push fails. What it reads it
 * also writes to: the layout may have to be mended, the residual changes. All are different arrays.
 * To submit is a moment's work, to encode is more: that is left to MXNet's workers. */
static int push(struct operation *op, NDArrayHandle *arrays, int n, hvd_error *err) {
    static const struct device APART = {CPU, NOBODYS_DEVICE}, SHARED = {CPU, 0};
    static const int AT_ONCE = ASYNC, BY_WORKERS = CPU_PRIORITIZED;
    hvd_mxnet *lib = op->lib;
    bool coded = is_coded(op);
    err->code = HVD_OK;
    op->pushed = true;
    if (lib->naive) op->report = err;
    if (lib->api.push(lib->function, op, end_operation, coded ? &SHARED : &APART, NULL, 0, arrays,
                      n, coded ? &BY_WORKERS : &AT_ONCE, op->members[0].tensor.request.priority,
                      "hvdlite", false))
        return error_set(err, HVD_INTERNAL, "MXNet takes no operation: %s", lib->api.last_error());
    return lib->naive ? err->code : HVD_OK;
}

/* Each as an operation of its own, in order. */
static int push_apart(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err) {
    int code = HVD_OK;
    for (int i = 0; i < n && !code; i++) code = hvd_mxnet_push(lib, &works[i], 1, err);
    return code;
}

static int push_group(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err) {
    struct operation *op = NULL;
    NDArrayHandle *arrays = malloc((size_t)n * ARRAYS * sizeof *arrays);
    if (!arrays) return error_set(err, HVD_NO_MEMORY, "no memory for a group of %d tensors", n);
    int code = new_prepared(lib, works, n, &op, err);
    int count = code ? 0 : arrays_of(op, arrays);
    bool apart = mxnet_array_any_share(arrays, count);
    if (apart) end_operation(op);
    if (!code) code = apart ? push_apart(lib, works, n, err) : push(op, arrays, count, err);
    free(arrays);
    return code;
}

static int push_one(hvd_mxnet *lib, const hvd_mxnet_work *work, hvd_error *err) {
    struct operation *op = NULL;
    NDArrayHandle arrays[ARRAYS];
    HVD_TRY(new_prepared(lib, work, 1, &op, err));
    return push(op, arrays, arrays_of(op, arrays), err);
}

int hvd_mxnet_push(hvd_mxnet *lib, const hvd_mxnet_work *works, int n, hvd_error *err) {
    return n == 1 ? push_one(lib, works, err) : push_group(lib, works, n, err);
}

int hvd_mxnet_push_in_place(hvd_mxnet *lib, const hvd_tensor *tensor, uintptr_t array,
                            hvd_error *err) {
    return push_one(lib, &(hvd_mxnet_work){.out = (void *)array, .tensor = tensor}, err);
}

int hvd_mxnet_references(void *array) { return mxnet_array_references(array); }

int hvd_mxnet_waiting(hvd_mxnet *lib) { return atomic_load(&lib->waiting); }

/* ---- opening ---- */

int hvd_mxnet_open(hvd_mxnet **out, const char *libmxnet, int three_or_four, int naive,
                   hvd_error *err) {
    hvd_mxnet *lib = calloc(1, sizeof *lib);
    if (!lib) return error_set(err, HVD_NO_MEMORY, "no memory for the MXNet binding");
    monitor_init(&lib->reporting);
    free_list_init(&lib->memory);
    error_set(&lib->no_memory, HVD_NO_MEMORY,
              "a collective has failed, and there is no memory to say why");
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

const struct mxnet_api *hvd_mxnet_api(const hvd_mxnet *lib) { return &lib->api; }

void hvd_mxnet_close(hvd_mxnet *lib) {
    free_list_destroy(&lib->memory);
    monitor_destroy(&lib->reporting);
    free(lib);
}
