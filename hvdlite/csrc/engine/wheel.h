/* Wheel: which thread steps the engine.
 *
 * The engine's own thread does, unless a thread that waits for a result takes the wheel: then no
 * hand-over between threads, and no sleep, lies between a submission and its result. While callers
 * step, and a moment after, the engine's thread is parked, where no message rings it. */
#ifndef HVDLITE_ENGINE_WHEEL_H
#define HVDLITE_ENGINE_WHEEL_H

#include "base/sync.h"
#include "transport/transport.h"

#include <stdatomic.h>

typedef int wheel_step(void *engine, bool *progress, hvd_error *err);

struct wheel {
    wheel_step *step;
    void *engine;
    struct monitor turn; /* who steps holds it; it guards: */
    hvd_error failure;   /* of a caller's step; code 0: none */
    double driven;       /* when a caller last stepped, by clock_now; 0: never */
    atomic_int callers;  /* that step, or are about to */
    struct monitor lot;  /* where the engine's thread is parked; it guards: */
    unsigned wakes;
};

void wheel_open(struct wheel *w, wheel_step *step, void *engine);
void wheel_close(struct wheel *w);

/* ---- the engine's thread ---- */
/* Takes the wheel, and steps; leave it after that. A caller's failed step fails this one. */
int wheel_take(struct wheel *w, bool *progress, hvd_error *err);
void wheel_leave(struct wheel *w);
bool wheel_has_callers(struct wheel *w);
bool wheel_was_driven(struct wheel *w); /* a moment ago: what comes next may come so, too */
unsigned wheel_wakes(struct wheel *w);
void wheel_park(struct wheel *w, unsigned wakes); /* until the next wake, or for a moment */

/* ---- any thread ---- */
void wheel_wake(struct wheel *w);
/* Takes one step of another kind, unless a thread steps. Its failure is that of the next step.
 * False: it failed, or was not taken. */
bool wheel_try(struct wheel *w, wheel_step *step, void *arg);
/* Steps until done(arg), as long as the policy looks and yields; if the transport blocks, some sleeps
 * longer. False: another thread steps. */
bool wheel_drive(struct wheel *w, struct transport *t, bool (*done)(void *), void *arg);

#endif
