/* The engine: a background thread of each rank, which takes tensors from submission to
 * completion.
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
    struct stats *stats;       /* counters; NULL: nothing is counted */
    struct timeline *timeline; /* owned by the caller; NULL: none */
    struct flight *flight;     /* owned by the caller; NULL: none */
    int group;                 /* the group's number in the flight recorder */
    /* Tells the job's other groups of a dead or silent rank; NULL: there are no other groups. */
    void (*give_up)(const hvd_error *cause);
};

/* Starts the thread; collective. The caller owns the transport and closes it after engine_stop. */
int engine_start(struct engine **out, struct transport *t, const struct engine_config *config,
                 hvd_error *err);

/* Any thread. Submits a tensor whose request has passed request_check. Checks the rest, finds
 * the tensor's region, and encodes the tensor if it has a codec. The tensor and the memory that
 * it points to must live until it completes. On an error nothing is submitted and `complete` is
 * not called. */
int engine_submit(struct engine *e, struct tensor *tensor, hvd_error *err);

/* Steps the engine in the calling thread until done(arg), or until the wait policy says to
 * sleep; then the engine's thread steps on. Any thread may call; the tensor was submitted with
 * `waited`. */
void engine_drive(struct engine *e, bool (*done)(void *), void *arg);

/* While corked, the engine takes no submitted tensors; afterwards it takes all at once. Calls
 * nest. */
void engine_cork(struct engine *e, bool corked);

/* Adds a region; every rank must add it. Tensors that are reduced in place in a region are not
 * copied. The region's memory must stay until the region is removed; then no tensor in it may be
 * under way. Any thread. */
void engine_add_region(struct engine *e, struct region *region);
void engine_remove_region(struct engine *e, struct region *region);

/* Says that this rank submits nothing more: later submissions fail. A tensor that all ranks have
 * submitted still runs; a tensor that needs a rank that left fails with that rank's reason. */
void engine_leave(struct engine *e, const char *reason);

/* Waits at most `seconds`. True: every rank has left, or the engine has failed. Any thread. */
bool engine_ended(struct engine *e, double seconds);

/* True after a transport failure; *why gets the first cause. Any thread. */
bool engine_failed(struct engine *e, hvd_error *why);

/* The algorithm of the last batch; NULL: no batch ran. Any thread. */
const char *engine_algorithm(struct engine *e);

/* Ends the thread, fails pending tensors and frees the engine. If engine_ended was not true
 * before, the other ranks consider this rank dead. */
void engine_stop(struct engine *e);

#endif
