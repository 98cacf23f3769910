/* The coordinator receives each rank's requests and decides which tensors run, and in which order.
 *
 * Pure: it takes messages and the time, and returns the items of a message to all ranks (wire.h).
 * Only the thread that steps rank 0's engine calls it. When the last rank has submitted a tensor,
 * the tensor runs, or fails with the same error on every rank. A rank that has left submits
 * nothing, so tensors that need this rank fail immediately. Ready tensors run by priority, then in
 * order of arrival. The coordinator decides a ready tensor late (ahead.h), so that a tensor with a
 * higher priority can still overtake it. */
#ifndef HVDLITE_NEGOTIATION_COORDINATOR_H
#define HVDLITE_NEGOTIATION_COORDINATOR_H

#include "base/options.h"
#include "negotiation/ahead.h"
#include "negotiation/cache.h"
#include "negotiation/ready.h"
#include "negotiation/wire.h"

struct coordinator_config {
    int size; /* number of ranks */
    /* by rank: the rank's number in the job, for texts; NULL: the same number */
    const int *job_ranks;
    struct options options;
    size_t piece_bytes; /* bytes of a large tensor's pieces; 0: ahead.h computes them */
};

/* Only coordinator.c, which takes messages, and decide.c use the fields. */
struct coordinator {
    struct coordinator_config config;
    struct cache *cache;
    uint64_t last_id;       /* the last id given to a tensor; ids are never reused */
    struct waiting waiting; /* tensors that some rank has not submitted */
    bool look_again;        /* a rank may have left, so all waiting tensors must be checked */
    /* true: look for deadlocks, because a tensor with request.last may be waiting */
    bool look_for_last;
    /* reason why all waiting tensors fail from now on; HVD_OK: they do not fail */
    hvd_error over;
    uint64_t ordered;   /* the next order number of a tensor; the first is 0 */
    struct ready ready; /* tensors that all ranks have submitted and that are not decided yet */
    struct ahead ahead;
    int *left; /* by rank: 1 for the first rank that left, 2 for the second, ...; 0: has not left */
    int *owed; /* by rank: number of RESENDs that the rank has not answered */
    int nleft, nowed;
    bool *joined; /* by rank */
    int njoined, last_joined;
    bool said_bye;
    char (*reason)[256]; /* by rank: reason why the rank left */
};

/* NULL: memory is short */
struct coordinator *coordinator_new(const struct coordinator_config *config);
void coordinator_free(struct coordinator *c);

/* coordinator_request, coordinator_hit and coordinator_resent take the reports of ranks. They fail
 * only if memory is short or hvdlite has a bug. After a request of kind join, no tensor waits for
 * `rank` until every rank has joined. If `rank` has no data, `why` is the reason, which the error
 * on every rank shows; "": no reason given. */
int coordinator_request(struct coordinator *c, int rank, const struct request *request,
                        const char *why, double now, hvd_error *err);
/* If the cache has dropped the id, appends a RESEND to `out`: the rank must send the whole
 * request. */
int coordinator_hit(struct coordinator *c, int rank, uint64_t id, double now,
                    struct wire_writer *out, hvd_error *err);
/* Takes the whole request with which a rank answers a RESEND. A rank counts as left only after it
 * has answered every RESEND. */
int coordinator_resent(struct coordinator *c, int rank, const struct request *request, double now,
                       hvd_error *err);
void coordinator_leave(struct coordinator *c, int rank, const char *reason);

/* Records that rank 0 has finished its oldest unfinished batch. */
void coordinator_finished(struct coordinator *c, double now);

/* Appends all present decisions to `out`. silent: by rank, true if the rank does not answer; NULL:
 * unknown. */
int coordinator_decide(struct coordinator *c, double now, const bool *silent,
                       struct wire_writer *out, hvd_error *err);

/* Returns the name of the tensor that has waited longest for some rank, and how many more tensors
 * wait. NULL: no tensor waits. */
const char *coordinator_oldest(const struct coordinator *c, size_t *more);

/* Reports tensors that have waited longer than stall_warning; see waiting_report. */
void coordinator_stalled(struct coordinator *c, double now, const bool *silent,
                         waiting_text *report, void *arg);

#endif
