/* Progress: which thread steps the engine.
 *
 * The engine's own thread steps it, unless a caller that waits for a result does. A caller's step
 * needs no hand-over between threads and no sleep from the submission to the result. While callers
 * step, and for a moment after, the engine's thread is parked: messages do not wake it. */
#ifndef HVDLITE_ENGINE_PROGRESS_H
#define HVDLITE_ENGINE_PROGRESS_H

#include "base/sync.h"
#include "transport/transport.h"

#include <stdatomic.h>

typedef int progress_step(void *engine, bool *progress, hvd_error *err);

struct progress {
    progress_step *step;
    void *engine;
    struct mutex stepping; /* the stepping thread holds it; guards the two fields below */
    hvd_error failure;     /* the error of a caller's step; code 0: none */
    double driven;         /* when a caller last stepped, by clock_now; 0: never */
    atomic_int callers;    /* threads that step or wait to step, apart from the engine's */
    struct mutex lot;      /* the parked thread waits here; guards `wakes` */
    unsigned wakes;        /* how often the parked thread was told to wake */
};

void progress_open(struct progress *p, progress_step *step, void *engine);
void progress_close(struct progress *p);

/* ---- the engine's thread ---- */
/* Locks `stepping` and steps; call progress_leave after it. Fails if a caller's step has failed. */
int progress_take(struct progress *p, bool *progress, hvd_error *err);
void progress_leave(struct progress *p);
bool progress_has_callers(struct progress *p);
/* true: a caller stepped a moment ago, so callers may step again soon */
bool progress_was_driven(struct progress *p);
unsigned progress_wakes(struct progress *p);
/* parks the engine's thread until the next wake, or for a moment */
void progress_park(struct progress *p, unsigned wakes);

/* ---- any thread ---- */
void progress_wake(struct progress *p);
/* Calls `step` in place of a step of the engine, unless another thread steps. A failure also
 * fails the engine's next step. False: the step failed or was not taken. */
bool progress_try(struct progress *p, progress_step *step, void *arg);
/* Steps until done(arg), or until the wait policy says to sleep; on a transport that blocks it
 * first sleeps a few short times. False: another thread stepped all the time. */
bool progress_drive(struct progress *p, struct transport *t, bool (*done)(void *), void *arg);

#endif
