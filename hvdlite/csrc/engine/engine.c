#include "engine/engine.h"

#include "base/clock.h"
#include "engine/negotiate.h"
#include "engine/progress.h"
#include "transport/wait.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum { NOBODY = -1 };

struct engine {
    struct transport *t;
    struct tensors *tensors;
    struct regions regions;
    struct fast_path fast;
    struct p2p p2p;
    struct log log;
    void (*give_up)(const hvd_error *cause);
    pthread_t thread;
    struct progress progress;
    bool was_rung; /* for the engine's thread: the doorbell or a nudge ended its last sleep */
    /* Only the stepping thread uses the following fields. */
    struct negotiation negotiation;
    struct executor executor;
    struct waiter waiter;
    double waits_since; /* since when tensors wait for other ranks; 0: none waits */
    bool over;          /* every rank has left, or the engine has failed: steps do nothing */
    /* Any thread reads the following fields. */
    atomic_bool leaving, stopping, failed;
    hvd_error cause;    /* first cause of the failure; set before `failed` */
    struct mutex mutex; /* guards the fields below */
    char reason[256];   /* reason why this rank leaves */
    bool ended;
};

/* ---- the stepping thread ---- */

/* Fails the job with the first cause: the same text on every rank, without this rank's context. */
static void fail(struct engine *e, const hvd_error *err) {
    hvd_error cause = e->negotiation.lost.code ? e->negotiation.lost : e->negotiation.abort_cause;
    if (!cause.code && err->nblamed && err->code != HVD_RANK_DEAD) cause = *err;
    if (cause.code != HVD_RANK_DEAD && !transport_find_dead(e->t, &cause) && !cause.code) {
        error_set(&cause, HVD_TRANSPORT, "rank %d can't go on: %.960s",
                  transport_job_rank(e->t, e->t->at.rank), err->text);
        transport_blame(e->t, e->t->at.rank, &cause);
    }
    if (!e->negotiation.abort_cause.code && cause.code == HVD_TRANSPORT)
        silence_blame(&e->negotiation, &cause);
    log_line(&e->log, LOG_DEBUG, "the job has failed: %s", cause.text);
    negotiate_abort(&e->negotiation, &cause);
    transport_give_up(e->t, &cause);
    if (e->give_up) e->give_up(&cause);
    transport_abandon(e->t);
    e->cause = cause;
    atomic_store(&e->failed, true);
    flight_trouble(e->executor.flight, cause.text, true);
    flight_blame(e->executor.flight, &cause);
    tensors_close(e->tensors, &cause);
    p2p_close(&e->p2p, &cause);
}

static int leave_if_asked(struct engine *e, hvd_error *err) {
    if (e->negotiation.left || !atomic_load(&e->leaving)) return HVD_OK;
    mutex_lock(&e->mutex);
    char reason[sizeof e->reason];
    snprintf(reason, sizeof reason, "%s", e->reason);
    mutex_unlock(&e->mutex);
    HVD_TRY(p2p_leave(&e->p2p, reason, err));
    return follow_leave(&e->negotiation, reason, err);
}

static int negotiate(struct engine *e, bool *progress, hvd_error *err) {
    if (atomic_load(&e->stopping))
        return error_set(err, HVD_TRANSPORT, "its engine was stopped before the job ended");
    HVD_TRY(leave_if_asked(e, err));
    HVD_TRY(fast_window_check(&e->fast, err));
    HVD_TRY(negotiate_step(&e->negotiation, progress, err));
    return e->negotiation.bye ? HVD_OK : transport_check_life(e->t, err);
}

/* Negotiates while a batch is on the links. Waits for data call it (struct patience). */
static int negotiate_meanwhile(void *arg, hvd_error *err) {
    bool progress;
    return negotiate(arg, &progress, err);
}

static void note_progress(struct engine *e) {
    e->waiter.since = 0;
    if (e->waits_since > 0) stats_waited(e->t->stats, e->waits_since, e->negotiation.now);
    e->waits_since = 0;
    if (timeline_on(e->executor.timeline)) timeline_cycle(e->executor.timeline, clock_now());
}

static int step(void *engine, bool *progress, hvd_error *err) {
    struct engine *e = engine;
    if (e->over) return HVD_OK;
    HVD_TRY(negotiate(e, progress, err));
    struct batch *batch = run_log_take(&e->negotiation.run_log);
    *progress = *progress || batch;
    if (*progress) note_progress(e); /* noted first, because the batch may end the timeline */
    if (!batch) return HVD_OK;
    int code = execute_batch(&e->executor, batch, err);
    free(batch);
    negotiate_finished(&e->negotiation);
    return code;
}

static bool is_pending(struct engine *e) {
    return tensors_count(e->tensors) > 0 || atomic_load(&e->p2p.count) > 0 ||
           fast_window_awaits(&e->fast) >= 0;
}

static void note_wait(struct engine *e, bool pending, double now) {
    if (!pending || e->waits_since > 0) return;
    e->waits_since = now;
    stats_wait(e->t->stats, now, NOBODY);
}

/* If nothing is pending, the engine's thread yields for LINGER and then sleeps: another tensor
 * often follows soon, and waking up takes longer than most tensors. If work is pending, the thread
 * follows the wait policy. If every message wakes the thread, it sleeps until a message arrives.
 * Otherwise it polls more and more rarely, and often again after a doorbell or a nudge. */
static double next_nap(struct engine *e) {
    static const double LINGER = 100e-6, IDLE_NAP = 1e-3;
    double now = clock_now();
    bool pending = is_pending(e);
    note_wait(e, pending, now);
    double longest = transport_longest_sleep(e->t, pending);
    if (pending || e->negotiation.left) longest = watch_sleep(&e->negotiation.watch, longest);
    longest =
        fast_hosts_sleep(&e->fast, now, aggregate_sleep(&e->negotiation.aggregate, now, longest));
    struct wait_policy policy = pending ? transport_policy(e->t) : e->t->patience.policy;
    if (!pending) policy = (struct wait_policy){.yield = wait_is_crowded(policy, now) ? 0 : LINGER};
    double nap = waiter_next(&e->waiter, now, policy, longest);
    if (!pending && nap > 0 && nap < IDLE_NAP) nap = IDLE_NAP;
    return nap > 0 && transport_rings(e->t) ? longest : nap;
}

/* ---- the engine's thread ---- */

static void idle(struct engine *e, unsigned ticket, double nap) {
    if (nap < 0) waiter_do(&e->waiter, nap);
    if (nap <= 0) return;
    transport_sleep(e->t, ticket, nap);
    if (transport_listen(e->t) != ticket) e->was_rung = true;
}

/* Steps. Returns false after the last step. *nap: pause until the next step, see next_nap. */
static bool step_once(struct engine *e, bool *progress, double *nap) {
    hvd_error err;
    int code = progress_take(&e->progress, progress, &err);
    if (e->was_rung) e->waiter.since = 0;
    e->was_rung = false;
    if (code) fail(e, &err);
    e->over = code || (e->negotiation.bye && !e->negotiation.run_log.first);
    if (!e->over && !*progress) *nap = next_nap(e);
    progress_leave(&e->progress);
    if (code) transport_linger(e->t);
    return !e->over;
}

static void *run(void *arg) {
    struct engine *e = arg;
    for (;;) {
        unsigned wakes = progress_wakes(&e->progress), ticket = transport_listen(e->t);
        bool progress = false;
        double nap = 0;
        if (progress_has_callers(&e->progress)) {
            progress_park(&e->progress, wakes);
            continue;
        }
        if (!step_once(e, &progress, &nap)) break;
        if (progress) continue;
        if (progress_was_driven(&e->progress) && !is_pending(e))
            progress_park(&e->progress, wakes);
        else
            idle(e, ticket, nap);
    }
    hvd_error over;
    error_set(&over, HVD_RANK_LEFT, "every rank has left the job");
    p2p_close(&e->p2p, &over);
    mutex_lock(&e->mutex);
    e->ended = true;
    mutex_notify(&e->mutex);
    mutex_unlock(&e->mutex);
    return NULL;
}

/* ---- any thread ---- */

static void wake(struct engine *e) {
    progress_wake(&e->progress);
    transport_wake(e->t);
}

static void release(struct engine *e) {
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
    progress_open(&e->progress, step, e);
    regions_init(&e->regions);
    /* A late rank may close a round; its batch may then be summed in another order. */
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
    t->patience.meanwhile = negotiate_meanwhile;
    t->patience.arg = e;
    return HVD_OK;
}

int engine_start(struct engine **out, struct transport *t, const struct engine_config *config,
                 hvd_error *err) {
    struct engine *e = calloc(1, sizeof *e);
    if (!e) return error_set(err, HVD_NO_MEMORY, "no memory for the engine");
    int code = prepare(e, t, config, err);
    if (!code) code = thread_start(&e->thread, run, e, "hvdlite", err);
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

/* Encodes last, because a refused tensor must leave the residual unchanged. */
static int prepare_data(struct engine *e, struct tensor *tensor, hvd_error *err) {
    if (tensor->request.failed) return HVD_OK;
    HVD_TRY(tensor_check(tensor, e->t->at.rank, e->t->at.size, err));
    find_region(e, tensor);
    return tensors_encode(e->tensors, tensor, err);
}

static int submit_p2p(struct engine *e, struct tensor *tensor, hvd_error *err) {
    HVD_TRY(p2p_submit(&e->p2p, tensor, err));
    if (!transport_rings(e->t) || !progress_try(&e->progress, p2p_step, &e->p2p)) wake(e);
    return HVD_OK;
}

int engine_submit(struct engine *e, struct tensor *tensor, hvd_error *err) {
    bool corked, waited = tensor->request.waited; /* read first: tensors_add may free the tensor */
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
    if (!done(arg) || is_pending(e)) wake(e);
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
    e->t->patience.meanwhile = NULL;
    release(e);
}
