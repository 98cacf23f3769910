/* The run log: the batches that all ranks have agreed on, in the order in which every rank runs
 * them.
 *
 * Only the thread that steps the engine uses it (progress.h). */
#ifndef HVDLITE_ENGINE_RUN_LOG_H
#define HVDLITE_ENGINE_RUN_LOG_H

#include "engine/tensors.h"
#include "engine/timeline.h"
#include "shm/flight.h"

/* The part of a tensor that a batch moves: all of it, or a piece. */
struct batch_piece {
    struct tensor *tensor;
    size_t begin, end; /* bytes */
};

/* Tensors that one collective moves together. They stay in the tensor table until they complete. */
struct batch {
    struct batch *next;
    double decided;  /* when the batch was appended to the log, by clock_now */
    uint64_t number; /* number in the log, counting from 1 */
    size_t n;
    struct batch_piece pieces[];
};

static inline bool batch_piece_is_last(const struct batch_piece *piece) {
    return piece->end == request_bytes(&piece->tensor->request);
}

struct run_log {
    struct batch *first, *last; /* the batches that have not run yet; NULL: none */
    uint64_t appended;          /* number of batches appended so far */
    struct batch_piece *open;   /* the parts of tensors in the open batch */
    size_t nopen, capacity;
};

void run_log_free(struct run_log *log);
/* Adds a tensor, or a part of a tensor, to the open batch. */
int run_log_add(struct run_log *log, struct batch_piece piece, hvd_error *err);
/* Appends the open batch to the log; the next run_log_add opens another batch. */
int run_log_append(struct run_log *log, double now, hvd_error *err);
/* Removes and returns the oldest batch, which the caller frees. NULL: the log is empty. */
struct batch *run_log_take(struct run_log *log);

/* ---- a batch's progress in the flight recorder, and in the timeline if the timeline is on ---- */
/* Records that all ranks have submitted the batch's tensors. */
void record_agreed(struct flight *flight, const struct batch *batch);

/* Records that the batch starts; flight and timeline may be NULL. Returns the time, or 0 if neither
 * needs it. */
double record_started(struct flight *flight, struct timeline *timeline, const struct batch *batch);
/* Records that the batch has ended. Call it before the batch's tensors complete. */
void record_ended(struct flight *flight, struct timeline *timeline, const struct batch *batch,
                  double started);

#endif
