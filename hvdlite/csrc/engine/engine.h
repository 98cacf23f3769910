/* The engine: a background thread of each rank that takes tensors from submission to completion.
 *
 * submit -> negotiate (negotiate.h) -> run log -> execute (execute.c) -> complete. If nothing is
 * pending, the thread sleeps until a submission or a message wakes it, at most 10 ms to 0.5 s
 * (transport_longest_sleep). A caller that waits for a tensor may step the engine instead of this
 * thread (progress.h). Only one thread at a time uses the transport. Every rank runs the same
 * batches, in the order that the coordinator decides.
 *
 * If the transport fails on any rank, all pending tensors and all later submissions fail with the
 * first cause. If ranks disagree about a tensor, only that tensor fails. */
#ifndef HVDLITE_ENGINE_ENGINE_H
#define HVDLITE_ENGINE_ENGINE_H

#include "base/options.h"
#include "base/output.h"
#include "engine/tensors.h"
#include "engine/timeline.h"
#include "negotiation/ahead.h"
#include "shm/flight.h"
#include "transport/transport.h"

struct engine;

struct engine_config {
    struct options options;
    struct log log;
    struct stats *stats;       /* NULL: nothing is counted */
    struct timeline *timeline; /* the caller owns it; NULL: no timeline */
    struct flight *flight;     /* the caller owns it; NULL: no recorder */
    int group;                 /* number of the group in the flight recorder */
    /* Tells the job's other groups about a dead or silent rank; NULL: there are no other groups. */
    void (*give_up)(const hvd_error *cause);
};

/* Starts the thread; collective. The caller owns the transport and closes it after engine_stop. */
int engine_start(struct engine **out, struct transport *t, const struct engine_config *config,
                 hvd_error *err);

/* Any thread. Submits a tensor. The caller has checked tensor->request with request_check; this
 * function checks the rest, finds the tensor's region, and encodes the tensor if it has a codec.
 * The tensor and the memory that it points to must live until the tensor completes. After an error
 * nothing is submitted and `complete` is not called. */
int engine_submit(struct engine *e, struct tensor *tensor, hvd_error *err);

/* Steps the engine in the calling thread until done(arg) returns true or the wait policy says to
 * sleep; then the engine's thread continues. Any thread may call it, to wait for a tensor that was
 * submitted with `waited`. */
void engine_drive(struct engine *e, bool (*done)(void *), void *arg);

/* While corked, the engine leaves submitted tensors in the table; after uncorking, it takes all of
 * them together. Calls nest. */
void engine_cork(struct engine *e, bool corked);

/* Adds a region; every rank must add it. Tensors that are reduced in place in a region are not
 * copied. The region's memory must exist until the region is removed. Remove the region only when
 * none of its tensors is under way. Any thread. */
void engine_add_region(struct engine *e, struct region *region);
void engine_remove_region(struct engine *e, struct region *region);

/* Tells the other ranks that this rank submits nothing more; later submissions fail. A tensor that
 * all ranks have submitted still runs, unless it waits behind a tensor with the same name
 * (`queued`). A tensor that lacks this rank fails with `reason`. */
void engine_leave(struct engine *e, const char *reason);

/* Waits for at most `seconds`. Returns true if every rank has left or the engine has failed. Any
 * thread. */
bool engine_ended(struct engine *e, double seconds);

/* Returns true after a transport failure and sets *why to the first cause. Any thread. */
bool engine_failed(struct engine *e, hvd_error *why);

/* Returns the algorithm of the last batch; NULL: no batch has run. Any thread. */
const char *engine_algorithm(struct engine *e);

/* Ends the thread, fails pending tensors and frees the engine. Call it after engine_ended has
 * returned true; otherwise the other ranks consider this rank dead. */
void engine_stop(struct engine *e);

#endif
