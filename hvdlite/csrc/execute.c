#include "execute.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static bool brings_data(const struct executor *x, const struct request *r) {
    return r->kind != HVD_BROADCAST || r->root == x->t->at.rank;
}

/* One tensor: in its own memory. */
static void *own_memory(const struct executor *x, const struct tensor *tensor) {
    if (tensor->in != tensor->out && brings_data(x, &tensor->request) &&
        request_bytes(&tensor->request))
        memcpy(tensor->out, tensor->in, request_bytes(&tensor->request));
    return tensor->out;
}

static void pack(const struct executor *x, const struct batch *batch, char *to) {
    for (size_t i = 0; i < batch->n; i++) {
        const struct tensor *tensor = batch->tensors[i];
        size_t bytes = request_bytes(&tensor->request);
        if (bytes && brings_data(x, &tensor->request)) memcpy(to, tensor->in, bytes);
        to += bytes;
    }
}

static void unpack(const struct executor *x, const struct batch *batch, const char *from) {
    for (size_t i = 0; i < batch->n; i++) {
        const struct tensor *tensor = batch->tensors[i];
        size_t bytes = request_bytes(&tensor->request);
        bool has_it = tensor->request.kind == HVD_BROADCAST && brings_data(x, &tensor->request);
        if (bytes && (!has_it || tensor->in != tensor->out)) memcpy(tensor->out, from, bytes);
        from += bytes;
    }
}

static struct coll_job job_of(struct executor *x, const struct request *r) {
    struct coll_job job = {.kind = (hvd_kind)r->kind, .root = r->root, .scratch = &x->work};
    if (x->t->at.local_size == x->t->at.size) job.window = x->t->window;
    if (r->kind != HVD_ALLREDUCE) return job;
    job.reduce = reduce_kernels((hvd_dtype)r->dtype);
    job.prescale = r->prescale;
    job.final.scale = r->postscale;
    job.final.divisor = r->op == HVD_AVERAGE ? x->t->at.size : 1;
    return job;
}

/* By messages: one tensor in its own memory, more in the fusion buffer. */
static int run_contiguous(struct executor *x, const struct batch *batch, struct coll_job *job,
                          hvd_error *err) {
    if (batch->n == 1) {
        job->data = own_memory(x, batch->tensors[0]);
        return coll_run(x->t, job, err);
    }
    HVD_TRY(scratch_get(&x->fusion, job->bytes ? job->bytes : 1, &job->data, err));
    pack(x, batch, job->data);
    HVD_TRY(coll_run(x->t, job, err));
    unpack(x, batch, job->data);
    return HVD_OK;
}

/* By the window: from and to the tensors themselves. */
static int run_pieces(struct executor *x, const struct batch *batch, struct coll_job *job,
                      hvd_error *err) {
    const struct tensor *first = batch->tensors[0];
    size_t parts = first->direct ? (size_t)first->region->n : 0;
    void *memory;
    HVD_TRY(scratch_get(&x->fusion, batch->n * sizeof(struct coll_piece) + parts * sizeof(char *),
                        &memory, err));
    struct coll_piece *pieces = memory;
    char **part = (char **)(void *)(pieces + batch->n);
    for (size_t i = 0; i < batch->n; i++) {
        const struct tensor *tensor = batch->tensors[i];
        pieces[i] = (struct coll_piece){tensor->in, tensor->out, request_bytes(&tensor->request)};
    }
    for (size_t i = 0; i < parts; i++) part[i] = region_part(first->region, (int)i);
    job->pieces = pieces;
    job->npieces = batch->n;
    job->memory = parts ? part : NULL;
    return coll_run(x->t, job, err);
}

static int run_reduce_or_broadcast(struct executor *x, const struct batch *batch, hvd_error *err) {
    struct coll_job job = job_of(x, &batch->tensors[0]->request);
    for (size_t i = 0; i < batch->n; i++) job.bytes += request_bytes(&batch->tensors[i]->request);
    return job.window && x->t->at.size > 1 ? run_pieces(x, batch, &job, err)
                                           : run_contiguous(x, batch, &job, err);
}

static int run_allgather(struct executor *x, const struct tensor *tensor, hvd_error *err) {
    int size = x->t->at.size;
    struct coll_job job = job_of(x, &tensor->request);
    void *ends;
    HVD_TRY(scratch_get(&x->fusion, (size_t)size * sizeof *job.part_end, &ends, err));
    size_t *part_end = ends, row_bytes = request_row_bytes(&tensor->request);
    for (int i = 0; i < size; i++) {
        job.bytes += (size_t)tensor->rows[i] * row_bytes;
        part_end[i] = job.bytes;
    }
    if (job.bytes != (size_t)tensor->out_rows * row_bytes)
        return error_set(err, HVD_INTERNAL,
                         "the output has room for %" PRId64
                         " rows, the ranks bring %zu bytes of %zu a row",
                         tensor->out_rows, job.bytes, row_bytes);
    job.part_end = part_end;
    job.in = tensor->in;
    job.data = tensor->out;
    return coll_run(x->t, &job, err);
}

static int run_coded(struct executor *x, const struct batch *batch, hvd_error *err) {
    const struct request *r = &batch->tensors[0]->request;
    void *memory;
    HVD_TRY(scratch_get(&x->list, batch->n * sizeof(struct coded_piece), &memory, err));
    struct coded_piece *pieces = memory;
    for (size_t i = 0; i < batch->n; i++) {
        const struct tensor *tensor = batch->tensors[i];
        pieces[i] =
            (struct coded_piece){tensor->message, tensor->out, request_count(&tensor->request)};
    }
    struct coll_job plain = job_of(x, r);
    struct coded_job job = {.codec = r->codec,
                            .final = plain.final,
                            .pieces = pieces,
                            .npieces = batch->n,
                            .window = plain.window,
                            .buffer = &x->fusion,
                            .scratch = &x->work};
    return coll_coded(x->t, &job, err);
}

static int run(struct executor *x, const struct batch *batch, hvd_error *err) {
    const struct tensor *first = batch->tensors[0];
    if (first->request.codec.kind) return run_coded(x, batch, err);
    return first->request.kind == HVD_ALLGATHER ? run_allgather(x, first, err)
                                                : run_reduce_or_broadcast(x, batch, err);
}

static void trace(const struct executor *x, const struct batch *batch, const char *what) {
    if (!log_on(x->log, LOG_TRACE)) return;
    for (size_t i = 0; i < batch->n; i++)
        log_line(x->log, LOG_TRACE, "%s '%s', %zu of %zu in its batch", what,
                 batch->tensors[i]->request.name, i + 1, batch->n);
}

int execute_batch(struct executor *x, const struct batch *batch, hvd_error *err) {
    trace(x, batch, "starts");
    if (run(x, batch, err)) {
        char text[400];
        request_text(&batch->tensors[0]->request, text, sizeof text);
        return error_while(err, "%s%s", text, batch->n > 1 ? " and what was fused with it" : "");
    }
    atomic_fetch_add(&x->done_tensors, batch->n); /* before anybody hears of it */
    atomic_fetch_add(&x->done_batches, 1);
    trace(x, batch, "completes");
    for (size_t i = 0; i < batch->n; i++) tensors_finish(x->tensors, batch->tensors[i], NULL);
    return HVD_OK;
}

void execute_free(struct executor *x) {
    scratch_free(&x->fusion);
    scratch_free(&x->work);
    scratch_free(&x->list);
}
