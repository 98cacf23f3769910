#include "engine/engine.h"

#include "base/os.h"
#include "engine/stepping.h"

#include <stdio.h>
#include <stdlib.h>

static void wake(struct engine *e) {
    progress_wake(&e->progress);
    transport_wake(e->t);
}

static void release(struct engine *e) {
    e->t->patience.meanwhile = NULL;
    negotiate_close(&e->negotiation);
    execute_free(&e->executor);
    tensors_free(e->tensors);
    regions_free(&e->regions);
    fast_path_close(&e->fast);
    p2p_free(&e->p2p);
    progress_close(&e->progress);
    mutex_destroy(&e->mutex);
    free(e);
}

static int prepare(struct engine *e, struct transport *t, const struct engine_config *config,
                   hvd_error *err) {
    struct coordinator_config coordinator = {
        .size = t->at.size, .job_ranks = t->job_ranks, .options = config->options};
    if (config->options.deterministic) coordinate_in_order(&coordinator, &t->all);
    mutex_init(&e->mutex);
    progress_open(&e->progress, engine_step, e);
    regions_init(&e->regions);
    /* A deterministic job has no fast path between hosts: timing would decide whether the fast path
     * or the engine sums a tensor, and the engine may add in another order. */
    fast_path_open(&e->fast, t, &e->executor, &e->failed, config->group,
                   !config->options.deterministic);
    p2p_open(&e->p2p, t, config->flight, config->group, config->timeline);
    e->t = t;
    e->log = config->log;
    e->give_up = config->give_up;
    e->tensors = tensors_new();
    if (!e->tensors) return error_set(err, HVD_NO_MEMORY, "no memory for the tensor table");
    HVD_TRY(negotiate_open(&e->negotiation, t, e->tensors, &coordinator, &e->log, err));
    e->negotiation.fast = &e->fast;
    e->negotiation.p2p = &e->p2p;
    e->negotiation.flight = config->flight;
    e->negotiation.group = config->group;
    e->executor = (struct executor){.comm = &t->all,
                                    .tensors = e->tensors,
                                    .log = &e->log,
                                    .timeline = config->timeline,
                                    .flight = config->flight,
                                    .stats = config->stats};
    t->stats = config->stats;
    t->patience.meanwhile = engine_meanwhile;
    t->patience.arg = e;
    return HVD_OK;
}

int engine_start(struct engine **out, struct transport *t, const struct engine_config *config,
                 hvd_error *err) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return error_set(err, HVD_NO_MEMORY, "no memory for the engine");
    int code = prepare(e, t, config, err);
    if (!code) code = thread_start(&e->thread, engine_run, e, "hvdlite", err);
    if (code)
        release(e);
    else
        *out = e;
    return code;
}

/* Stores the tensor's region if the tensor is reduced in place in a region. */
static void find_region(struct engine *e, struct tensor *tensor) {
    struct request *r = &tensor->request;
    tensor->region = NULL;
    if (r->kind == HVD_ALLREDUCE && !r->codec.kind && tensor->in == tensor->out)
        tensor->region = regions_find(&e->regions, tensor->out, request_bytes(r), &r->offset);
    r->region = tensor->region ? tensor->region->id : 0;
    if (!tensor->region) r->offset = 0;
}

void engine_add_region(struct engine *e, struct region *region) {
    regions_add(&e->regions, region);
}

void engine_remove_region(struct engine *e, struct region *region) {
    regions_remove(&e->regions, region);
}

/* Checks and encodes a tensor. Encodes last, because a refused tensor must leave the residual
 * unchanged. If memory is short, marks the tensor as failed, because other ranks wait for it. */
static int prepare_data(struct engine *e, struct tensor *tensor, hvd_error *err) {
    int32_t *failed = &tensor->request.failed;
    if (*failed == HVD_NO_MEMORY) *failed = HVD_OK; /* left from the last run of a plan */
    if (!*failed && tensor->request.uneven && !tensor->splits) *failed = HVD_NO_MEMORY;
    if (*failed) return HVD_OK;
    HVD_TRY(tensor_check(tensor, e->t->at.rank, e->t->at.size, err));
    find_region(e, tensor);
    hvd_error encoding; /* keeps *err unchanged if the tensor is submitted without data */
    int code = tensors_encode(e->tensors, &e->t->all, tensor, &encoding);
    if (code == HVD_NO_MEMORY) return *failed = code, HVD_OK;
    if (code && err) *err = encoding;
    return code;
}

/* The argument of take_turn, one step of the sends and receives. */
struct p2p_turn {
    struct p2p *p2p;
    bool reads; /* true: the next step reads more of a sender's memory */
};

static int take_turn(void *arg, bool *progress, hvd_error *err) {
    struct p2p_turn *turn = arg;
    int code = p2p_step(turn->p2p, progress, err);
    turn->reads = p2p_reads(turn->p2p);
    return code;
}

static int submit_p2p(struct engine *e, struct tensor *tensor, hvd_error *err) {
    struct p2p_turn turn = {.p2p = &e->p2p};
    HVD_TRY(p2p_submit(&e->p2p, tensor, err)); /* the tensor may end at any time from now on */
    bool stepped = transport_rings(e->t) && progress_try(&e->progress, take_turn, &turn);
    /* wake the engine to read the rest of a sender's memory: no message wakes it for that */
    if (!stepped || turn.reads) wake(e);
    return HVD_OK;
}

int engine_submit(struct engine *e, struct tensor *tensor, hvd_error *err) {
    bool corked, waited = tensor->request.waited; /* read now: the tensor may be freed when added */
    bool ends = atomic_load(&e->failed) || atomic_load(&e->leaving);
    tensor->submitted = clock_now();
    tensor->node = map_node_of(tensor->request.name, tensor);
    if (p2p_is(&tensor->request)) return submit_p2p(e, tensor, err);
    if (!ends && fast_window_run(&e->fast, tensor)) return HVD_OK;
    HVD_TRY(prepare_data(e, tensor, err));
    int code = fast_window_submit(&e->fast, e->tensors, tensor, &corked, err);
    if (code) free(tensor->message);
    if (!code && !corked && !waited) wake(e);
    return code;
}

void engine_drive(struct engine *e, bool (*done)(void *), void *arg) {
    if (transport_rings(e->t)) progress_drive(&e->progress, e->t, done, arg);
    if (!done(arg) || engine_is_pending(e)) wake(e);
}

void engine_cork(struct engine *e, bool corked) {
    tensors_cork(e->tensors, corked);
    if (!corked) wake(e);
}

void engine_leave(struct engine *e, const char *reason) {
    hvd_error left;
    error_set(&left, HVD_NOT_INITIALIZED,
              "this rank has left the job (%.200s): it can't submit tensors any more", reason);
    tensors_refuse(e->tensors, &left);
    p2p_refuse(&e->p2p, &left);
    mutex_lock(&e->mutex);
    if (!atomic_load(&e->leaving)) snprintf(e->reason, sizeof e->reason, "%s", reason);
    mutex_unlock(&e->mutex);
    atomic_store(&e->leaving, true);
    wake(e);
}

bool engine_ended(struct engine *e, double seconds) {
    double until = clock_now() + seconds;
    mutex_lock(&e->mutex);
    for (double left; !e->ended && (left = until - clock_now()) > 0;) mutex_wait(&e->mutex, left);
    bool ended = e->ended;
    mutex_unlock(&e->mutex);
    return ended;
}

bool engine_failed(struct engine *e, hvd_error *why) {
    bool failed = atomic_load(&e->failed);
    if (failed) *why = e->cause;
    return failed;
}

const char *engine_algorithm(struct engine *e) { return atomic_load(&e->executor.algorithm); }

void engine_stop(struct engine *e) {
    atomic_store(&e->stopping, true);
    wake(e);
    thread_join(e->thread);
    release(e);
}
