/* The engine: one background thread a rank that takes a tensor from submission to completion.
 *
 * submit -> negotiate (negotiate.h) -> run log -> execute (execute.h) -> complete. The
 * thread is event-driven: with nothing pending it sleeps until somebody submits or a message comes.
 * It is the only one that touches the transport. Every rank runs the coordinator's log in order.
 *
 * After a transport failure, here or on any other rank, everything pending and every later
 * submission ends with the first cause; a disagreement between ranks fails just its tensor. */
#ifndef HVDLITE_ENGINE_ENGINE_H
#define HVDLITE_ENGINE_ENGINE_H

#include "base/log.h"
#include "engine/tensors.h"
#include "engine/timeline.h"
#include "shm/regions.h"
#include "transport/transport.h"

struct engine;

struct engine_config {
    size_t fusion_bytes;   /* most bytes that one batch fuses; the coordinator's counts */
    size_t cache_capacity; /* tensors */
    double stall_warning;  /* seconds until a waiting tensor is reported; 0: never */
    double stall_failure;  /* seconds until it fails; 0: never */
    struct log log;
    struct stats *stats;       /* NULL: nothing is counted */
    struct timeline *timeline; /* the caller's; NULL: none */
};

/* Starts the thread. Every rank of the transport must start one. The transport stays the caller's,
 * who closes it after engine_stop. */
int engine_start(struct engine **out, struct transport *t, const struct engine_config *config,
                 hvd_error *err);

/* Any thread. The tensor's request has passed request_check; the rest of it is checked here. Notes where
 * it lies and, where it has a codec, what it is encoded to. The tensor and all that it points to must live
 * until it completes. On an error nothing was submitted and `complete` is not called. */
int engine_submit(struct engine *e, struct tensor *tensor, hvd_error *err);

/* While it is corked the thread takes nothing that is submitted; then all at once. Calls may nest. */
void engine_cork(struct engine *e, bool corked);

/* Memory that all ranks map, added by all of them: tensors that are reduced in place in it need no
 * copy. It must stay until it is removed, and no tensor may be under way in it then. Any thread. */
void engine_add_region(struct engine *e, struct region *region);
void engine_remove_region(struct engine *e, struct region *region);

/* This rank submits nothing any more: later submissions fail. What all ranks have submitted still
 * runs; what needs a rank that has left fails, with the reason given there. */
void engine_leave(struct engine *e, const char *reason);

/* Waits at most `seconds` for the end: every rank has left, or a failure. Any thread. */
bool engine_ended(struct engine *e, double seconds);

/* True, and the first cause in *why, after a transport failure. Any thread. */
bool engine_failed(struct engine *e, hvd_error *why);

/* The algorithm of the last batch; NULL: there was none. Any thread. */
const char *engine_algorithm(struct engine *e);

/* Ends the thread and frees the engine, fails what is pending. Call it after engine_ended said
 * true, else the other ranks lose this one without a word. */
void engine_stop(struct engine *e);

#endif
