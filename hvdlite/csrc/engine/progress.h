/* Progress: decides which thread steps the engine.
 *
 * The engine's own thread steps, or a caller that waits for a result steps. If a caller steps, no
 * hand-over between threads and no sleep delays the result. While callers step, and for a few
 * milliseconds after, the engine's thread is parked: messages do not wake it. */
#ifndef HVDLITE_ENGINE_PROGRESS_H
#define HVDLITE_ENGINE_PROGRESS_H

#include "base/os.h"
#include "transport/transport.h"

#include <stdatomic.h>

typedef int progress_step(void *engine, bool *progress, hvd_error *err);

struct progress {
    progress_step *step;
    void *engine;
    struct mutex stepping; /* held by the stepping thread; guards the next two fields */
    hvd_error failure;     /* error of a step by a caller; code 0: none */
    double driven;         /* when a caller last stepped, by clock_now; 0: never */
    atomic_int callers;    /* number of callers that step or wait to step */
    struct mutex lot;      /* the parked thread waits on it; guards `wakes` */
    unsigned wakes;        /* how many times the parked thread was told to wake up */
};

void progress_open(struct progress *p, progress_step *step, void *engine);
void progress_close(struct progress *p);

/* ---- the engine's thread ---- */
/* Locks `stepping` and steps; the caller of this function unlocks `stepping`. Fails if a step by a
 * thread of the user has failed. */
int progress_take(struct progress *p, bool *progress, hvd_error *err);
/* Returns true if a caller has just stepped: callers then often step again soon. */
bool progress_was_driven(struct progress *p);
/* Returns how many times the engine's thread has been told to wake up. */
unsigned progress_wakes(struct progress *p);
/* Sleeps until progress_wakes no longer returns `wakes`, but only for a moment. */
void progress_park(struct progress *p, unsigned wakes);

/* ---- any thread ---- */
void progress_wake(struct progress *p);
/* Calls `step` instead of a step of the engine, unless another thread is stepping. If `step` fails,
 * the engine's next step fails, too. Returns false if `step` failed or was not called. */
bool progress_try(struct progress *p, progress_step *step, void *arg);
/* Steps until done(arg) returns true or the wait policy says to sleep. If messages end sleeps, then
 * sleeps and steps a few more times. Returns false if another thread stepped all the time. */
bool progress_drive(struct progress *p, struct transport *t, bool (*done)(void *), void *arg);

#endif
