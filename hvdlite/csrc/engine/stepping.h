/* One step of the engine.
 *
 * Only engine.c and stepping.c include this file; they share the engine's state. One thread steps
 * at a time: the engine's own thread, or a caller that waits for a tensor (progress.h). */
#ifndef HVDLITE_ENGINE_STEPPING_H
#define HVDLITE_ENGINE_STEPPING_H

#include "engine/engine.h"
#include "engine/negotiate.h"
#include "engine/progress.h"
#include "transport/wait.h"

#include <stdatomic.h>

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
    bool was_rung; /* for the engine's thread: a message or another thread ended its last sleep */
    /* Only the stepping thread uses the following fields. */
    struct negotiation negotiation;
    struct executor executor;
    struct waiter waiter;
    double waits_since; /* since when this rank waits for other ranks; 0: it does not wait */
    bool over;          /* every rank has left, or the engine has failed: steps do nothing */
    /* Any thread reads the following fields. */
    atomic_bool leaving, stopping, failed;
    hvd_error cause;    /* first cause of the failure; set before `failed` */
    struct mutex mutex; /* guards the fields below */
    char reason[256];   /* reason why this rank leaves */
    bool ended;
};

/* The function of the engine's thread. */
void *engine_run(void *engine);

/* Negotiates and executes at most one batch. The stepping thread calls it. */
int engine_step(void *engine, bool *progress, hvd_error *err);

/* Negotiates while a batch is on the links. Threads that wait for data call this function (struct
 * patience). */
int engine_meanwhile(void *engine, hvd_error *err);

/* Returns whether a tensor has been submitted and has not completed. Any thread. */
bool engine_is_pending(struct engine *e);

#endif
