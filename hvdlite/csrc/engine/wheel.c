#include "engine/wheel.h"

#include "base/clock.h"
#include "base/floats.h"

void wheel_open(struct wheel *w, wheel_step *step, void *engine) {
    *w = (struct wheel){.step = step, .engine = engine};
    monitor_init(&w->turn);
    monitor_init(&w->lot);
}

void wheel_close(struct wheel *w) {
    monitor_destroy(&w->turn);
    monitor_destroy(&w->lot);
}

int wheel_take(struct wheel *w, bool *progress, hvd_error *err) {
    monitor_lock(&w->turn);
    floats_exact(); /* the thread has the mode of the one that has started it */
    if (!w->failure.code) return w->step(w->engine, progress, err);
    *err = w->failure;
    return err->code;
}

void wheel_leave(struct wheel *w) { monitor_unlock(&w->turn); }

bool wheel_has_callers(struct wheel *w) { return atomic_load(&w->callers) > 0; }

bool wheel_was_driven(struct wheel *w) {
    static const double RECENT = 3e-3;
    monitor_lock(&w->turn);
    bool recent = w->driven > 0 && clock_now() - w->driven < RECENT;
    monitor_unlock(&w->turn);
    return recent;
}

unsigned wheel_wakes(struct wheel *w) {
    monitor_lock(&w->lot);
    unsigned wakes = w->wakes;
    monitor_unlock(&w->lot);
    return wakes;
}

void wheel_park(struct wheel *w, unsigned wakes) {
    static const double LOOK = 1e-3; /* messages of ranks that call nothing here ring nobody */
    monitor_lock(&w->lot);
    if (w->wakes == wakes) monitor_wait(&w->lot, LOOK);
    monitor_unlock(&w->lot);
}

void wheel_wake(struct wheel *w) {
    monitor_lock(&w->lot);
    w->wakes++;
    monitor_notify(&w->lot);
    monitor_unlock(&w->lot);
}

bool wheel_try(struct wheel *w, wheel_step *step, void *arg) {
    bool progress;
    if (!monitor_try(&w->turn)) return false;
    if (!w->failure.code) step(arg, &progress, &w->failure);
    bool well = !w->failure.code;
    monitor_unlock(&w->turn);
    return well;
}

/* Most turns are shorter than a wake-up. */
static bool get_turn(struct wheel *w, bool (*done)(void *), void *arg) {
    enum { TRIES = 2000 };
    for (int i = 0; i < TRIES && !done(arg); i++) {
        if (monitor_try(&w->turn)) return true;
        clock_relax();
    }
    return false;
}

/* Sleeps where the transport can: to hand over to the engine's thread, and back, takes as long as
 * most of these sleeps. */
static bool nap(struct transport *t, unsigned ticket, int *naps) {
    enum { MOST = 5 };
    static const double NAP = 1e-3;
    if (!transport_blocks(t) || ++*naps > MOST) return false;
    transport_sleep(t, ticket, NAP);
    return true;
}

static void drive(struct wheel *w, struct transport *t, bool (*done)(void *), void *arg) {
    enum { UNTIMED = 8 }; /* looks for one look at the clock */
    struct wait_policy policy = transport_policy(t);
    struct waiter waiter = {0};
    int naps = 0;
    for (unsigned looks = 0; !done(arg) && !w->failure.code; looks++) {
        bool progress = false;
        double pause = 0;
        unsigned ticket = transport_blocks(t) ? transport_listen(t) : 0; /* else no nap needs one */
        if (w->step(w->engine, &progress, &w->failure)) return;
        if (progress) waiter = (struct waiter){0};
        if (progress) naps = 0;
        if (!progress && (policy.spin <= 0 || looks % UNTIMED == 0))
            pause = waiter_next(&waiter, clock_now(), policy, 1);
        if (pause > 0 && !nap(t, ticket, &naps)) return;
        if (pause < 0) clock_yield();
    }
}

bool wheel_drive(struct wheel *w, struct transport *t, bool (*done)(void *), void *arg) {
    atomic_fetch_add(&w->callers, 1);
    bool has = get_turn(w, done, arg);
    if (has) {
        floats_mode mode = floats_exact();
        drive(w, t, done, arg);
        floats_restore(mode);
        w->driven = clock_now();
        monitor_unlock(&w->turn);
    }
    atomic_fetch_sub(&w->callers, 1);
    return has;
}
