#include "engine/stepping.h"

#include "base/os.h"

#include <stdio.h>
#include <stdlib.h>

enum { NOBODY = -1 };

/* ---- the stepping thread ---- */

/* Fails the job with the first cause that this engine knows, and sends the cause to all ranks. The
 * cause does not name what this rank was doing, because all ranks should raise the same text. */
static void fail_job(struct engine *e, const hvd_error *err) {
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
    e->t->ops->abandon(e->t);
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

int engine_meanwhile(void *arg, hvd_error *err) {
    bool progress;
    return negotiate(arg, &progress, err);
}

static void note_progress(struct engine *e) {
    e->waiter.since = 0;
    if (e->waits_since > 0) stats_waited(e->t->stats, e->waits_since, e->negotiation.now);
    e->waits_since = 0;
    if (timeline_on(e->executor.timeline)) timeline_cycle(e->executor.timeline, clock_now());
}

int engine_step(void *engine, bool *progress, hvd_error *err) {
    struct engine *e = engine;
    if (e->over) return HVD_OK;
    HVD_TRY(negotiate(e, progress, err));
    struct batch *batch = run_log_take(&e->negotiation.run_log);
    *progress = *progress || batch;
    if (*progress) note_progress(e); /* before the batch, whose end may end the job's timeline */
    if (!batch) return HVD_OK;
    int code = execute_batch(&e->executor, batch, err);
    free(batch);
    struct coordinator *c = e->negotiation.coordinator;
    if (c) coordinator_finished(c, clock_now());
    return code;
}

bool engine_is_pending(struct engine *e) {
    return tensors_count(e->tensors) > 0 || atomic_load(&e->p2p.count) > 0 ||
           fast_window_awaits(&e->fast) >= 0;
}

/* Returns the seconds that the engine's thread sleeps before its next step; <= 0: see waiter_next.
 * If work is pending, the thread follows the wait policy. If nothing is pending, the thread first
 * yields for LINGER, because another tensor often follows soon, and waking up takes longer than
 * most tensors. If every message wakes the thread, a sleep lasts until a message arrives. Otherwise
 * the sleeps become longer and longer, and short again after something has woken the thread. */
static double next_nap(struct engine *e) {
    /* Seconds; chosen, not measured. With a longer LINGER, an idle job takes more of the cores.
     * With a shorter IDLE_NAP, an idle rank polls more often. */
    static const double LINGER = 100e-6, IDLE_NAP = 1e-3;
    double now = clock_now();
    bool pending = engine_is_pending(e);
    if (pending && e->waits_since <= 0) {
        e->waits_since = now;
        stats_wait(e->t->stats, now, NOBODY);
    }
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

/* Steps. Returns false after the last step. *nap: see next_nap; set only without progress. */
static bool step_once(struct engine *e, bool *progress, double *nap) {
    hvd_error err;
    int code = progress_take(&e->progress, progress, &err);
    if (e->was_rung) e->waiter.since = 0;
    e->was_rung = false;
    if (code) fail_job(e, &err);
    e->over = code || (e->negotiation.bye && !e->negotiation.run_log.first);
    if (!e->over && !*progress) *nap = next_nap(e);
    mutex_unlock(&e->progress.stepping);
    if (code) transport_linger(e->t);
    return !e->over;
}

void *engine_run(void *arg) {
    struct engine *e = arg;
    for (;;) {
        unsigned wakes = progress_wakes(&e->progress), ticket = transport_listen(e->t);
        bool progress = false;
        double nap = 0;
        if (atomic_load(&e->progress.callers) > 0) {
            progress_park(&e->progress, wakes);
            continue;
        }
        if (!step_once(e, &progress, &nap)) break;
        if (progress) continue;
        bool driven = progress_was_driven(&e->progress);
        if (driven && !engine_is_pending(e)) {
            progress_park(&e->progress, wakes);
        } else if (nap <= 0) {
            /* a long yield means nothing here: perhaps a caller that steps has used the core */
            if (driven) e->waiter.policy.crowd = NULL;
            waiter_do(&e->waiter, nap);
        } else {
            transport_sleep(e->t, ticket, nap);
            if (transport_listen(e->t) != ticket) e->was_rung = true;
        }
    }
    hvd_error over;
    error_set(&over, HVD_RANK_LEFT, "every rank has left the job");
    mutex_lock(&e->progress.stepping); /* a caller may still step, for a tensor submitted before */
    p2p_close(&e->p2p, &over);
    mutex_unlock(&e->progress.stepping);
    mutex_lock(&e->mutex);
    e->ended = true;
    mutex_notify(&e->mutex);
    mutex_unlock(&e->mutex);
    return NULL;
}
