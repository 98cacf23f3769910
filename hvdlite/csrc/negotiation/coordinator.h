/* The coordinator: hears what every rank has ready and decides what runs, in which order, for all.
 *
 * Messages and `now` in, items of one message to all ranks out (wire.h). It lives on
 * the lowest rank; that rank's engine thread calls it, nobody else. A tensor runs, or fails with
 * one error everywhere, when its last rank has submitted it; a rank that has left can't submit, so
 * what still waits for it fails at once. Ready tensors go by priority, then by arrival. */
#ifndef HVDLITE_NEGOTIATION_COORDINATOR_H
#define HVDLITE_NEGOTIATION_COORDINATOR_H

#include "negotiation/waiting.h"
#include "negotiation/wire.h"

struct coordinator;

struct coordinator_config {
    int size;              /* ranks */
    const int *job_ranks;  /* [rank]: what texts call it; NULL: its number here */
    size_t fusion_bytes;   /* most bytes that one batch fuses; 0: no fusion */
    size_t cache_capacity; /* tensors; 0: no cache */
    double stall_warning;  /* seconds until a waiting tensor is reported; 0: never */
    double stall_failure;  /* seconds until it fails; 0: never */
};

struct coordinator *coordinator_new(const struct coordinator_config *config); /* NULL: no memory */
void coordinator_free(struct coordinator *c);

/* What ranks say. An error here is a defect or lack of memory, never the user's. From a rank's request
 * of kind join until every rank has joined, tensors that it has not submitted do not wait for it. */
int coordinator_request(struct coordinator *c, int rank, const struct request *request, double now,
                        hvd_error *err);
/* Asks the rank for the whole request, through `out`, when the id has been dropped. */
int coordinator_hit(struct coordinator *c, int rank, uint64_t id, double now,
                    struct wire_writer *out, hvd_error *err);
/* The answer to that. A rank is taken to have left only when it owes no more answers. */
int coordinator_resent(struct coordinator *c, int rank, const struct request *request, double now,
                       hvd_error *err);
void coordinator_leave(struct coordinator *c, int rank, const char *reason);

/* Writes all that can be decided by now to `out`; nothing new leaves `out` as it was. */
int coordinator_decide(struct coordinator *c, double now, struct wire_writer *out, hvd_error *err);

/* Puts what has waited too long and was not reported yet into words, see waiting_report. */
void coordinator_stalled(struct coordinator *c, double now, waiting_text *report, void *arg);

#endif
