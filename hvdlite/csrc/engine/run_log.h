/* The run log: batches that all ranks have agreed on, in the order in which every rank runs them.
 *
 * The engine's thread. */
#ifndef HVDLITE_ENGINE_RUN_LOG_H
#define HVDLITE_ENGINE_RUN_LOG_H

#include "engine/tensors.h"
#include "engine/timeline.h"
#include "shm/flight.h"

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

#endif
