/* The run log: batches that all ranks have agreed on, in the order in which every rank runs them.
 *
 * The engine's thread. */
#ifndef HVDLITE_ENGINE_RUN_LOG_H
#define HVDLITE_ENGINE_RUN_LOG_H

#include "base/log.h"
#include "collectives/coded.h"
#include "engine/tensors.h"
#include "engine/timeline.h"
#include "shm/flight.h"
#include "shm/regions.h"
#include "transport/comm.h"

#include <stdatomic.h>

/* The part of a tensor that a batch moves: the whole, or a piece. */
struct batch_piece {
    struct tensor *tensor;
    size_t begin, end; /* bytes */
};

/* Tensors that one collective moves together. They stay in the tensor table until they finish. */
struct batch {
    struct batch *next;
    double decided;  /* when it was appended to the log, by clock_now */
    uint64_t number; /* in the log, from 1 */
    size_t n;
    struct batch_piece pieces[];
};

static inline bool batch_piece_is_last(const struct batch_piece *piece) {
    return piece->end == request_bytes(&piece->tensor->request);
}

struct run_log {
    struct batch *first, *last; /* not run yet; NULL: none */
    uint64_t appended;          /* so far */
    struct batch_piece *open;   /* of the batch that the next append closes */
    size_t nopen, capacity;
};

void run_log_free(struct run_log *log);
/* Adds a piece to the open batch, which the next append closes. */
int run_log_add(struct run_log *log, struct batch_piece piece, hvd_error *err);
int run_log_append(struct run_log *log, double now, hvd_error *err);
/* Takes the oldest batch; NULL: there is none. The caller frees it. */
struct batch *run_log_take(struct run_log *log);

/* ---- notes on a tensor on its way: in the flight recorder and in a timeline that is on ---- */
/* All ranks have submitted the batch's tensors. */
void record_agreed(struct flight *flight, const struct batch *batch);

/* flight, timeline: NULL: none. Returns when the batch started; 0 if neither needs it. */
double record_started(struct flight *flight, struct timeline *timeline, const struct batch *batch);
/* Call it before the batch's tensors complete. */
void record_ended(struct flight *flight, struct timeline *timeline, const struct batch *batch,
                  double started);

/* ---- execution of a batch: pack, one collective, unpack, complete: execute.c ----
 *
 * A batch of one tensor runs in the user's memory; several tensors are copied to the fusion buffer
 * and back, except on a window. execute_batch returns when this rank is done. */

struct executor {
    const struct comm *comm; /* all ranks of the group */
    struct tensors *tensors;
    const struct log *log;
    struct timeline *timeline;                /* NULL: none */
    struct flight *flight;                    /* the same */
    struct stats *stats;                      /* NULL: nothing is counted */
    struct scratch fusion, work, outer, list; /* kept: saves page faults */
    uint64_t turns;                           /* delegated tensors so far */
    _Atomic(const char *) algorithm; /* of the last batch; NULL: none yet. Any thread reads */
};

/* Runs the batch and finishes its tensors; an error names the batch and leaves them unfinished. */
int execute_batch(struct executor *x, const struct batch *batch, hvd_error *err);
void execute_count(const struct executor *x, size_t tensors); /* of a batch; any thread */
void execute_free(struct executor *x);

#endif
