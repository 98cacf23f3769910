/* The engine: one background thread a rank that takes a tensor from submission to completion.
 *
 * submit -> negotiate (negotiate.h) -> run log -> execute (execute.c) -> complete. The thread is
 * event-driven: with nothing pending it sleeps until a submission or a message wakes it. A thread
 * that waits for a tensor steps in its place (progress.h). One thread at a time uses the transport.
 * Every rank runs the coordinator's log in order.
 *
 * After a transport failure, on this or another rank, all pending tensors and all later submissions
 * fail with the first cause. A disagreement between ranks fails only its tensor. */
#ifndef HVDLITE_ENGINE_ENGINE_H
#define HVDLITE_ENGINE_ENGINE_H

#include "base/log.h"
#include "base/options.h"
#include "engine/tensors.h"
#include "engine/timeline.h"
#include "negotiation/ahead.h"
#include "shm/flight.h"
#include "shm/regions.h"
#include "transport/transport.h"

struct engine;

struct engine_config {
    struct options options;
    struct log log;
    struct stats *stats;       /* NULL: nothing is counted */
    struct timeline *timeline; /* the caller owns it; NULL: none */
    struct flight *flight;     /* the same */
    int group;                 /* its number in the flight recorder */
    /* Tells the job's other groups of a dead or silent rank; NULL: there are no other groups. */
    void (*give_up)(const hvd_error *cause);
};

/* Starts the thread; collective. The caller owns the transport and closes it after engine_stop. */
int engine_start(struct engine **out, struct transport *t, const struct engine_config *config,
                 hvd_error *err);

/* Any thread. The request has passed request_check; this checks the rest, finds the tensor's region
 * and encodes a tensor with a codec. The tensor and the memory that it points to must live until it
 * completes. On an error nothing is submitted and `complete` is not called. */
int engine_submit(struct engine *e, struct tensor *tensor, hvd_error *err);

/* Steps the engine until done(arg), or until the wait policy says to sleep; then the engine's
 * thread goes on. Any thread; call it for a tensor submitted with `waited`. */
void engine_drive(struct engine *e, bool (*done)(void *), void *arg);

/* While corked, the engine takes no submitted tensors; afterwards it takes all at once. Calls
 * nest. */
void engine_cork(struct engine *e, bool corked);

/* A region, which every rank adds: tensors reduced in place there are not copied. The memory must
 * stay until the region is removed, with no tensor under way in it. Any thread. */
void engine_add_region(struct engine *e, struct region *region);
void engine_remove_region(struct engine *e, struct region *region);

/* This rank submits nothing any more: later submissions fail. A tensor that all ranks have
 * submitted still runs; a tensor that needs a rank that left fails with that rank's reason. */
void engine_leave(struct engine *e, const char *reason);

/* Waits at most `seconds`. True: every rank has left, or the engine has failed. Any thread. */
bool engine_ended(struct engine *e, double seconds);

/* After a transport failure: true, and the first cause in *why. Any thread. */
bool engine_failed(struct engine *e, hvd_error *why);

/* The algorithm of the last batch; NULL: no batch ran. Any thread. */
const char *engine_algorithm(struct engine *e);

/* Ends the thread, fails pending tensors and frees the engine. Call it after engine_ended; else the
 * other ranks lose this rank without a reason. */
void engine_stop(struct engine *e);

#endif
