#include "engine/execute.h"

#include "collectives/algorithm.h"
#include "shm/window.h"

#include <stdlib.h>
#include <string.h>

static bool has_data(const struct executor *x, const struct request *r) {
    return r->kind != HVD_BROADCAST || r->root == x->comm->rank;
}

static const char *input_of(const struct batch_piece *piece) {
    return (const char *)piece->tensor->in + piece->begin;
}

static char *output_of(const struct batch_piece *piece) {
    return (char *)piece->tensor->out + piece->begin;
}

static size_t bytes_of(const struct batch_piece *piece) { return piece->end - piece->begin; }

/* Returns the output of a batch of one tensor; first copies the input there if it is elsewhere. */
static void *own_memory(const struct executor *x, const struct batch_piece *piece) {
    const struct tensor *tensor = piece->tensor;
    if (tensor->in != tensor->out && has_data(x, &tensor->request) && bytes_of(piece))
        coll_copy(x->comm, output_of(piece), input_of(piece), bytes_of(piece));
    return tensor->out ? output_of(piece) : NULL;
}

/* A batch and the fusion buffer. */
struct packing {
    const struct executor *x;
    const struct batch *batch;
    char *buffer;
    bool packs; /* false: unpacks */
};

/* Packs or unpacks a range of the buffer. */
static void move_range(const void *arg, struct coll_range range) {
    const struct packing *p = arg;
    size_t begin = 0;
    for (size_t i = 0; i < p->batch->n; i++) {
        const struct batch_piece *piece = &p->batch->pieces[i];
        const struct tensor *tensor = piece->tensor;
        struct coll_range at = coll_overlap(range, begin, bytes_of(piece));
        char *packed = p->buffer + begin + at.begin;
        bool has_it = has_data(p->x, &tensor->request);
        bool in_place = tensor->request.kind == HVD_BROADCAST && tensor->in == tensor->out;
        begin += bytes_of(piece);
        if (!coll_length(at)) continue;
        if (p->packs && has_it) memcpy(packed, input_of(piece) + at.begin, coll_length(at));
        if (!p->packs && !(has_it && in_place))
            memcpy(output_of(piece) + at.begin, packed, coll_length(at));
    }
}

static struct coll_args args_of(struct executor *x, const struct request *r) {
    struct coll_args args = {
        .kind = (hvd_kind)r->kind, .root = r->root, .scratch = &x->work, .outer = &x->outer};
    if (!request_reduces(r)) return args;
    args.reduce = reduce_kernels((hvd_dtype)r->dtype, (hvd_op)r->op);
    args.prescale = r->prescale;
    args.final.scale = r->postscale;
    args.final.divisor = r->op == HVD_AVERAGE ? r->contributors : 1;
    args.adasum = r->op == HVD_ADASUM;
    return args;
}

static int run_collective(struct executor *x, const struct coll_args *args, hvd_error *err) {
    if (x->comm->size > 1) atomic_store(&x->algorithm, coll_choose(x->comm, args)->name);
    if (x->comm->window) cpus_publish_core(x->comm->window);
    return coll_run(x->comm, args, err);
}

/* Runs a batch of one tensor in the tensor's memory, other batches in the fusion buffer. */
static int run_contiguous(struct executor *x, const struct batch *batch, struct coll_args *args,
                          hvd_error *err) {
    if (batch->n == 1) {
        args->data = own_memory(x, &batch->pieces[0]);
        return run_collective(x, args, err);
    }
    HVD_TRY(scratch_get(&x->fusion, args->bytes ? args->bytes : 1, &args->data, err));
    struct packing packing = {x, batch, args->data, true};
    struct coll_range all = {0, args->bytes};
    coll_share(x->comm, args->bytes, all, move_range, &packing);
    HVD_TRY(run_collective(x, args, err));
    packing.packs = false;
    coll_share(x->comm, args->bytes, all, move_range, &packing);
    return HVD_OK;
}

static struct coll_tensor coll_tensor_of(const struct batch_piece *piece) {
    const struct tensor *tensor = piece->tensor;
    struct coll_tensor of = {
        .in = input_of(piece), .out = output_of(piece), .bytes = bytes_of(piece)};
    if (tensor->request.rule != HVD_RULE_NONE) of.update = &tensor->update;
    of.before = piece->begin / dtype_size(tensor->request.dtype);
    return of;
}

static int list_tensors(struct executor *x, const struct batch *batch, struct coll_args *args,
                        hvd_error *err) {
    const struct tensor *first = batch->pieces[0].tensor;
    size_t parts = first->direct ? (size_t)first->region->n : 0;
    void *memory;
    HVD_TRY(scratch_get(&x->list, batch->n * sizeof(struct coll_tensor) + parts * sizeof(char *),
                        &memory, err));
    struct coll_tensor *tensors = memory;
    char **part = (char **)(void *)(tensors + batch->n);
    for (size_t i = 0; i < batch->n; i++) tensors[i] = coll_tensor_of(&batch->pieces[i]);
    for (size_t i = 0; i < parts; i++) part[i] = region_part(first->region, (int)i);
    args->tensors = tensors;
    args->ntensors = batch->n;
    args->memory = parts ? part : NULL;
    return HVD_OK;
}

/* Runs an allreduce with an update of weights; each host has a part of the optimizer states. */
static int run_dealt(struct executor *x, struct coll_args *args, hvd_error *err) {
    HVD_TRY(scratch_get(&x->fusion, args->bytes ? args->bytes : 1, &args->data, err));
    atomic_store(&x->algorithm, "update by hosts");
    return args->bytes ? coll_update_dealt(x->comm, args, err) : HVD_OK;
}

static int run_reduce_or_broadcast(struct executor *x, const struct batch *batch, hvd_error *err) {
    const struct tensor *first = batch->pieces[0].tensor;
    const struct layout *l = x->comm->layout;
    struct coll_args args = args_of(x, &first->request);
    for (size_t i = 0; i < batch->n; i++) args.bytes += bytes_of(&batch->pieces[i]);
    HVD_TRY(list_tensors(x, batch, &args, err));
    if (first->request.rule & REQUEST_DEALT && l && l->hosts > 1) return run_dealt(x, &args, err);
    bool in_tensors = x->comm->size > 1 && coll_choose(x->comm, &args)->in_tensors;
    HVD_TRY(in_tensors ? run_collective(x, &args, err) : run_contiguous(x, batch, &args, err));
    bool updated = in_tensors && x->comm->window && first->direct;
    if (!first->request.rule || updated) return HVD_OK;
    return coll_update(l ? &l->host : x->comm, &args, err);
}

static int run_parts(struct executor *x, struct tensor *tensor, hvd_error *err) {
    struct coll_args args = args_of(x, &tensor->request);
    HVD_TRY(parts_prepare(x, tensor, &args, err));
    return tensor->request.delegated ? HVD_OK : run_collective(x, &args, err);
}

static int run_coded(struct executor *x, const struct batch *batch, hvd_error *err) {
    const struct request *r = &batch->pieces[0].tensor->request;
    void *memory;
    HVD_TRY(scratch_get(&x->list, batch->n * sizeof(struct coded_tensor), &memory, err));
    struct coded_tensor *tensors = memory;
    for (size_t i = 0; i < batch->n; i++) {
        const struct tensor *tensor = batch->pieces[i].tensor;
        size_t n = request_count(&tensor->request);
        tensors[i] = (struct coded_tensor){tensor->message, tensor->out, n};
    }
    struct coll_args plain = args_of(x, r);
    struct coded_args args = {.codec = r->codec,
                              .contributors = r->contributors,
                              .final = plain.final,
                              .tensors = tensors,
                              .ntensors = batch->n,
                              .buffer = &x->fusion,
                              .scratch = &x->work,
                              .outer = &x->outer};
    if (x->comm->size > 1) atomic_store(&x->algorithm, coded_choose(x->comm, &args)->name);
    return coll_coded(x->comm, &args, err);
}

/* Drops private copies of pages with weights (host_memory_settle). No rank has written the weights
 * yet, because the update needs this rank's part of the collective. */
static int settle_views(const struct batch *batch, hvd_error *err) {
    for (size_t i = 0; i < batch->n; i++) {
        const struct tensor *tensor = batch->pieces[i].tensor;
        bool first = batch->pieces[i].begin == 0;
        for (size_t k = 0; first && k < tensor->nviews; k++)
            HVD_TRY(host_memory_settle(&tensor->views[k], err));
    }
    return HVD_OK;
}

static void give_turns(struct executor *x, const struct batch *batch) {
    uint64_t last = x->turns + batch->n;
    for (size_t i = 0; i < batch->n; i++) {
        batch->pieces[i].tensor->turn = ++x->turns;
        batch->pieces[i].tensor->last_turn = last;
    }
}

static int run_batch(struct executor *x, const struct batch *batch, hvd_error *err) {
    struct tensor *first = batch->pieces[0].tensor;
    HVD_TRY(settle_views(batch, err));
    if (first->request.kind == HVD_JOIN) {
        memcpy(first->out, first->rows,
               sizeof *first->rows); /* result: the rank that joined last */
        return HVD_OK;
    }
    if (first->request.delegated == HVD_ASKS) return HVD_OK;
    if (first->request.delegated) give_turns(x, batch);
    if (first->request.codec.kind) return run_coded(x, batch, err);
    bool in_place = first->request.kind == HVD_ALLREDUCE || first->request.kind == HVD_BROADCAST;
    if (in_place && first->request.delegated) return HVD_OK;
    return in_place ? run_reduce_or_broadcast(x, batch, err) : run_parts(x, first, err);
}

static void trace(const struct executor *x, const struct batch *batch, const char *what) {
    if (!log_on(x->log, LOG_TRACE)) return;
    for (size_t i = 0; i < batch->n; i++)
        log_line(x->log, LOG_TRACE, "%s '%s', %zu of %zu in its batch", what,
                 batch->pieces[i].tensor->request.name, i + 1, batch->n);
}

void execute_count(const struct executor *x, size_t tensors) {
    if (!x->stats) return;
    atomic_fetch_add(&x->stats->tensors, tensors);
    atomic_fetch_add(&x->stats->batches, 1);
}

int execute_batch(struct executor *x, const struct batch *batch, hvd_error *err) {
    double started = record_started(x->flight, x->timeline, batch);
    trace(x, batch, "starts");
    if (run_batch(x, batch, err)) {
        char text[400];
        request_text(&batch->pieces[0].tensor->request, text, sizeof text);
        return error_while(err, "%s%s", text, batch->n > 1 ? " and the tensors in its batch" : "");
    }
    size_t done = 0; /* counted first: after a completion, a caller may read the counts */
    for (size_t i = 0; i < batch->n; i++) done += batch_piece_is_last(&batch->pieces[i]);
    execute_count(x, done);
    trace(x, batch, "completes");
    record_ended(x->flight, x->timeline, batch, started);
    for (size_t i = 0; i < batch->n; i++)
        if (batch_piece_is_last(&batch->pieces[i]))
            tensors_finish(x->tensors, batch->pieces[i].tensor, NULL);
    return HVD_OK;
}

void execute_free(struct executor *x) {
    scratch_free(&x->fusion);
    scratch_free(&x->work);
    scratch_free(&x->list);
    scratch_free(&x->outer);
}
