#include "engine/progress.h"

#include "base/floats.h"
#include "base/os.h"

void progress_open(struct progress *p, progress_step *step, void *engine) {
    *p = (struct progress){.step = step, .engine = engine};
    mutex_init(&p->stepping);
    mutex_init(&p->lot);
}

void progress_close(struct progress *p) {
    mutex_destroy(&p->stepping);
    mutex_destroy(&p->lot);
}

int progress_take(struct progress *p, bool *progress, hvd_error *err) {
    mutex_lock(&p->stepping);
    floats_exact(); /* a thread inherits the floating-point mode of the thread that starts it */
    if (!p->failure.code) return p->step(p->engine, progress, err);
    *err = p->failure;
    return err->code;
}

bool progress_was_driven(struct progress *p) {
    /* Seconds after a caller's step. If shorter, a message wakes the engine's thread although a
     * caller steps next, and two hand-overs between threads cost 8 us. If longer, messages wait
     * more often, for up to 1 ms. */
    static const double RECENT = 3e-3;
    mutex_lock(&p->stepping);
    bool recent = p->driven > 0 && clock_now() - p->driven < RECENT;
    mutex_unlock(&p->stepping);
    return recent;
}

unsigned progress_wakes(struct progress *p) {
    mutex_lock(&p->lot);
    unsigned wakes = p->wakes;
    mutex_unlock(&p->lot);
    return wakes;
}

void progress_park(struct progress *p, unsigned wakes) {
    /* Maximum seconds that a message waits, because messages do not wake a parked thread. With a
     * shorter time, the thread looks for messages more often than 1,000 times per second. */
    static const double LOOK = 1e-3;
    mutex_lock(&p->lot);
    if (p->wakes == wakes) mutex_wait(&p->lot, LOOK);
    mutex_unlock(&p->lot);
}

void progress_wake(struct progress *p) {
    mutex_lock(&p->lot);
    p->wakes++;
    mutex_notify(&p->lot);
    mutex_unlock(&p->lot);
}

bool progress_try(struct progress *p, progress_step *step, void *arg) {
    bool progress;
    if (!mutex_try(&p->stepping)) return false;
    if (!p->failure.code) step(arg, &progress, &p->failure);
    bool well = !p->failure.code;
    mutex_unlock(&p->stepping);
    return well;
}

/* Spins instead of waiting for the lock, because most steps are shorter than a wake-up. The spin is
 * limited, because a step that moves a large array takes long. */
static bool lock_stepping(struct progress *p, bool (*done)(void *), void *arg) {
    enum { TRIES = 2000 };
    for (int i = 0; i < TRIES && !done(arg); i++) {
        if (mutex_try(&p->stepping)) return true;
        clock_relax();
    }
    return false;
}

/* Sleeps for a short time if the transport can wake this thread. Handing over to the engine's
 * thread and back would take as long as most of these sleeps: on 8 hosts of 200 Mbit/s that
 * tests/cluster.py emulates on 2 cores, numpy.allreduce of 64 KB took 0.9 times as long as MPI's
 * with the sleeps, and 1.1 times without. After MOST sleeps without progress the wait is long, and
 * a hand-over costs little in comparison. */
static bool nap_for_message(struct transport *t, unsigned ticket, int *naps) {
    enum { MOST = 5 };
    static const double NAP = 1e-3;
    if (!transport_blocks(t) || ++*naps > MOST) return false;
    transport_sleep(t, ticket, NAP);
    return true;
}

static void step_until(struct progress *p, struct transport *t, bool (*done)(void *), void *arg) {
    /* The clock is read only at every UNTIMED-th check: a check then takes less time, and a spin
     * lasts at most UNTIMED checks too long. */
    enum { UNTIMED = 8 };
    struct wait_policy policy = transport_policy(t);
    struct waiter waiter = {0};
    int naps = 0;
    for (unsigned looks = 0; !done(arg) && !p->failure.code; looks++) {
        bool progress = false;
        double pause = 0;
        /* for nap_for_message, which sleeps only if the transport blocks */
        unsigned ticket = transport_blocks(t) ? transport_listen(t) : 0;
        if (p->step(p->engine, &progress, &p->failure)) return;
        if (progress) waiter = (struct waiter){0};
        if (progress) naps = 0;
        if (!progress && (policy.spin <= 0 || looks % UNTIMED == 0))
            pause = waiter_next(&waiter, clock_now(), policy, 1);
        if (pause > 0 && !nap_for_message(t, ticket, &naps)) return;
        if (pause < 0) waiter_do(&waiter, pause);
    }
}

bool progress_drive(struct progress *p, struct transport *t, bool (*done)(void *), void *arg) {
    atomic_fetch_add(&p->callers, 1);
    bool has = lock_stepping(p, done, arg);
    if (has) {
        floats_mode mode = floats_exact();
        step_until(p, t, done, arg);
        floats_restore(mode);
        p->driven = clock_now();
        mutex_unlock(&p->stepping);
    }
    atomic_fetch_sub(&p->callers, 1);
    return has;
}
