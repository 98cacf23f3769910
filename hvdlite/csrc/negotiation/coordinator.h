/* The coordinator: receives each rank's requests and decides which tensors run, in which order.
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
    int size; /* ranks */
    /* by rank: the rank's number in the job, for texts; NULL: the same number */
    const int *job_ranks;
    struct options options;
    size_t piece_bytes; /* bytes of the pieces of large tensors; 0: measured, see ahead.h */
    const bool *silent; /* by rank: true if the rank does not answer, for texts; NULL: not known */
};

struct coordinator *coordinator_new(const struct coordinator_config *config); /* NULL: no memory */
void coordinator_free(struct coordinator *c);

/* coordinator_request, coordinator_hit and coordinator_left take the reports of ranks. They fail
 * only without memory or through a defect of hvdlite. After a request of kind join no tensor
 * waits for this rank until every rank has joined. why: the text for every rank's error if the
 * request has failed, else "". */
int coordinator_request(struct coordinator *c, int rank, const struct request *request,
                        const char *why, double now, hvd_error *err);
/* If the cache has dropped the id, asks the rank by `out` for the whole request. */
int coordinator_hit(struct coordinator *c, int rank, uint64_t id, double now,
                    struct wire_writer *out, hvd_error *err);
/* Takes the rank's answer to such a question: the whole request. A rank counts as left only when
 * it has answered all questions. */
int coordinator_resent(struct coordinator *c, int rank, const struct request *request, double now,
                       hvd_error *err);
void coordinator_leave(struct coordinator *c, int rank, const char *reason);

/* The coordinator's own rank has finished its oldest unfinished batch. */
void coordinator_finished(struct coordinator *c, double now);

/* Appends all present decisions to `out`. */
int coordinator_decide(struct coordinator *c, double now, struct wire_writer *out, hvd_error *err);

/* The tensor that has waited longest for some rank, and how many more wait; NULL: none. */
const char *coordinator_oldest(const struct coordinator *c, size_t *more);

/* Reports tensors that have waited longer than stall_warning; see waiting_report. */
void coordinator_stalled(struct coordinator *c, double now, waiting_text *report, void *arg);

#endif
