#include "mxnet/operation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

/* Reuses the memory of operations with one collective. If one thread allocated the memory and
 * another thread freed it, the two threads would wait for each other in malloc, for a tenth of the
 * time that pushing a small gradient takes. */
static struct operation *get_memory(hvd_mxnet *lib, int n) {
    void **kept = NULL;
    if (n == 1) {
        mutex_lock(&lib->freeing);
        kept = lib->freed;
        if (kept) lib->freed = *kept;
        mutex_unlock(&lib->freeing);
    }
    if (kept) return (struct operation *)kept;
    return malloc(sizeof(struct operation) + (size_t)n * sizeof(struct collective));
}

static void put_memory(struct operation *op) {
    hvd_mxnet *lib = op->lib;
    if (op->error != &lib->no_memory) free(op->error);
    if (op->n > 1) {
        free(op);
        return;
    }
    mutex_lock(&lib->freeing);
    *(void **)op = lib->freed;
    lib->freed = op;
    mutex_unlock(&lib->freeing);
}

static void free_operation(struct operation *op) {
    for (int i = 0; i < op->n; i++) {
        struct collective *m = &op->collectives[i];
        for (int j = 0; j < ARRAYS; j++)
            if (m->arrays[j]) op->lib->api.release(m->arrays[j]);
        free((void *)m->tensor.splits);
        free((void *)m->tensor.why);
    }
    for (int i = 0; i < op->nheld; i++) op->lib->api.release(op->held[i].array);
    free(op->held);
    free(op->views);
    put_memory(op);
}

int operation_new(hvd_mxnet *lib, int n, struct operation **out, hvd_error *err) {
    struct operation *op = get_memory(lib, n);
    if (!op) return error_set(err, HVD_NO_MEMORY, "no memory for an operation on %d tensors", n);
    atomic_fetch_add(&lib->waiting, n);
    *op = (struct operation){.lib = lib, .n = n};
    atomic_init(&op->left, 2 * n);
    /* does not zero the tensors, which are large: the caller fills them in */
    for (int i = 0; i < n; i++) {
        op->collectives[i].op = op;
        op->collectives[i].tensor.splits = NULL;
        op->collectives[i].tensor.why = NULL;
        memset(op->collectives[i].arrays, 0, sizeof op->collectives[i].arrays);
    }
    *out = op;
    return HVD_OK;
}

/* ---- running: on MXNet's threads and on the engine thread ---- */

static void complete_with_error(struct operation *op) {
    _Alignas(16) unsigned char exception[64] = {0};
    hvd_mxnet *lib = op->lib;
    struct on_complete done = op->done; /* copied, because done.call may free the operation */
    mutex_lock(&lib->reporting);
    if (op->error != &lib->no_memory) hvd_keep_failure(op->error); /* MXNet keeps only the text */
    lib->api.make_error(exception, op->error->text);
    done.call(done.engine, done.param, exception);
    lib->api.destroy_error(exception);
    mutex_unlock(&lib->reporting);
}

static void complete(struct operation *op) {
    struct on_complete done = op->done;
    if (op->error && op->report) *op->report = *op->error;
    if (op->error && !op->lib->naive)
        complete_with_error(op);
    else
        done.call(done.engine, done.param, NULL);
}

static void note_error(struct operation *op, const hvd_error *error) {
    hvd_error *no_memory = &op->lib->no_memory; /* shared by all operations, so never changed */
    mutex_lock(&op->lib->reporting);
    if (!op->error) op->error = calloc(1, sizeof *op->error);
    if (!op->error) op->error = no_memory;
    if (op->error != no_memory) error_also(op->error, error);
    mutex_unlock(&op->lib->reporting);
}

/* Ends one use of the operation. The end of the last use completes the operation, which may free
 * it. If MXNet has dropped the operation, only frees it, because MXNet itself raises the reason. */
static void drop_use(struct operation *op) {
    if (atomic_fetch_sub(&op->left, 1) == 1) (op->ran ? complete : free_operation)(op);
}

void operation_collective_ended(void *arg, const hvd_error *error) {
    struct collective *m = arg;
    if (error) note_error(m->op, error);
    drop_use(m->op);
}

static int find_memory(struct collective *m, hvd_error *err) {
    struct tensor *tensor = &m->tensor;
    void *data[ARRAYS] = {NULL};
    for (int i = 0; i < ARRAYS; i++)
        if (m->arrays[i])
            HVD_TRY(mxnet_array_memory(&m->op->lib->api, m->arrays[i], tensor->request.name,
                                       &data[i], err));
    tensor->in = m->arrays[IN] ? data[IN] : data[OUT];
    tensor->out = data[OUT];
    tensor->residual = data[RESIDUAL];
    return HVD_OK;
}

/* Submits the tensor. If the tensor has failed, submits it without data, because otherwise the
 * other ranks would wait for this rank. */
static int submit(struct collective *m, hvd_error *err) {
    if (!m->tensor.request.failed) HVD_TRY(find_memory(m, err));
    return hvd_submit(m->group, &m->tensor, err);
}

/* Submits the collective if all earlier collectives of its name have been submitted; then submits
 * the later collectives that waited for this collective. */
static void submit_in_order(struct queues *queues, struct collective *m) {
    for (struct queue_entry *entry = queue_ready(queues, &m->entry); entry;) {
        struct collective *due = entry->value;
        struct operation *op = due->op;
        hvd_error err; /* fails, for example, if the job has ended */
        if (submit(due, &err)) operation_collective_ended(due, &err);
        atomic_fetch_sub(&op->lib->waiting, 1);
        entry = queue_next(queues, entry);
        drop_use(op);
    }
}

/* Finds the memory of the held arrays. Called when no operator of this rank uses the arrays. */
static int find_held(struct operation *op, hvd_error *err) {
    const char *name = op->collectives[0].tensor.request.name;
    for (int i = 0; i < op->nheld; i++) {
        void *data;
        if (!op->held[i].view) continue;
        HVD_TRY(mxnet_array_memory(&op->lib->api, op->held[i].array, name, &data, err));
        op->held[i].view->at = data;
    }
    return HVD_OK;
}

static void submit_all(struct operation *op, bool failed) {
    struct queues *queues = &op->lib->queues;
    /* n is copied because the last collective may free the operation */
    for (int i = 0, n = op->n; i < n; i++) {
        struct collective *m = &op->collectives[i];
        if (failed) m->tensor.request.failed = HVD_FAILED;
        submit_in_order(queues, m);
    }
}

void operation_enter(struct operation *op) {
    for (int i = 0; i < op->n; i++) {
        struct collective *m = &op->collectives[i];
        queue_enter(&op->lib->queues, &m->entry, m->group, m->tensor.request.name, m);
    }
}

void operation_run3(void *run_context, struct on_complete *done, void *param) {
    (void)run_context;
    struct operation *op = param;
    op->done = *done; /* copied, because MXNet's struct is on a stack */
    op->ran = true;
    const int group = op->collectives[0].group;
    const bool several = op->n > 1;
    hvd_error err;
    const bool failed = find_held(op, &err) != HVD_OK;
    if (failed) note_error(op, &err);
    if (several) hvd_cork(group, true);
    submit_all(op, failed);
    if (several) hvd_cork(group, false);
}

void operation_run4(void *run_context, void *on_start, struct on_complete *done, void *param) {
    (void)on_start; /* not called, because it does nothing for CPUs */
    operation_run3(run_context, done, param);
}

void operation_end(void *param) {
    struct operation *op = param;
    if (!op->pushed) atomic_fetch_sub(&op->lib->waiting, op->n);
    if (!op->pushed || op->ran)
        free_operation(op);
    else
        submit_all(op, true);
}
