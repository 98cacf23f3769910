/* The coordinator: receives what each rank has submitted and decides what runs, in which order.
 *
 * Pure: messages and `now` in, items of one message to all ranks out (wire.h). The lowest rank's
 * engine thread calls it. When the last rank has submitted a tensor, the tensor runs, or fails with
 * the same error on every rank. A rank that has left submits nothing, so tensors that wait for it
 * fail at once. Ready tensors run by priority, then by arrival; they are decided late (ahead.h), so
 * that a tensor with a higher priority still overtakes them. */
#ifndef HVDLITE_NEGOTIATION_COORDINATOR_H
#define HVDLITE_NEGOTIATION_COORDINATOR_H

#include "base/options.h"
#include "negotiation/pending.h"
#include "negotiation/wire.h"

struct coordinator;

struct coordinator_config {
    int size;             /* ranks */
    const int *job_ranks; /* [rank]: its rank in the job, for texts; NULL: the same */
    struct options options;
    size_t piece_bytes; /* of the pieces of large tensors; 0: see ahead.h */
    const bool *silent; /* [rank]: it does not answer, for texts; NULL: none is known */
};

struct coordinator *coordinator_new(const struct coordinator_config *config); /* NULL: no memory */
void coordinator_free(struct coordinator *c);

/* What ranks report. An error is a defect or lack of memory, never the user's. A request of kind
 * join: until every rank has joined, no tensor waits for this rank. why: of a request that has
 * failed, for the error of every rank; else "". */
int coordinator_request(struct coordinator *c, int rank, const struct request *request,
                        const char *why, double now, hvd_error *err);
/* Where the id has been dropped, asks the rank through `out` for the whole request. */
int coordinator_hit(struct coordinator *c, int rank, uint64_t id, double now,
                    struct wire_writer *out, hvd_error *err);
/* The whole request. A rank has left when no request of its own is unanswered. */
int coordinator_resent(struct coordinator *c, int rank, const struct request *request, double now,
                       hvd_error *err);
void coordinator_leave(struct coordinator *c, int rank, const char *reason);

/* The coordinator's own rank has run the oldest batch for which it has not called this yet. */
void coordinator_finished(struct coordinator *c, double now);

/* Appends to `out` what can be decided now. */
int coordinator_decide(struct coordinator *c, double now, struct wire_writer *out, hvd_error *err);

/* The tensor that has waited longest for some rank, and how many more do; NULL: none waits. */
const char *coordinator_oldest(const struct coordinator *c, size_t *more);

/* Reports tensors that have waited longer than stall_warning; see waiting_report. */
void coordinator_stalled(struct coordinator *c, double now, waiting_text *report, void *arg);

#endif
