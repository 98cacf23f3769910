/* Negotiation: this rank's talk with the coordinator, up to the run log.
 *
 * Submitted tensors become items of a message to the coordinator, whole the first time and
 * a cache id later; what the coordinator decides becomes batches in the run log, or errors. On rank
 * 0 the coordinator itself is driven from here, and rank 0 talks to it like everyone else, without
 * the transport. One thread, the engine's; nothing blocks. */
#ifndef HVDLITE_ENGINE_NEGOTIATE_H
#define HVDLITE_ENGINE_NEGOTIATE_H

#include "engine/tensors.h"
#include "negotiation/cache.h"
#include "negotiation/coordinator.h"
#include "transport/transport.h"

/* Tensors that one collective moves together; they stay in the tensor table until finished. */
struct batch {
    struct batch *next;
    double decided; /* when it came into the log, by clock_now */
    size_t n;
    struct tensor *tensors[];
};

struct negotiation {
    struct transport *t;
    struct tensors *tensors;
    struct cache *cache;             /* this rank's */
    struct coordinator *coordinator; /* on rank 0, else NULL */
    struct wire_writer out, decided; /* to the coordinator; by the coordinator */
    double now;                      /* of this step, by clock_now */
    struct batch *first, **last;     /* the run log, as far as it is not executed */
    struct tensor **open;            /* tensors since the last RUN */
    size_t nopen, open_capacity;
    bool left;       /* LEAVE is said */
    hvd_error heard; /* another rank's ABORT, in that rank's words; code 0: none */
    bool said_abort;
    bool bye; /* every rank has left */
};

/* Rank 0 gets a coordinator of this configuration. A zeroed struct may be freed. */
int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, hvd_error *err);
void negotiate_close(struct negotiation *n);

/* Passes on what was submitted, hears what came, decides. *progress is set when anything happened.
 * An error is the end of the job: HVD_TRANSPORT from an ABORT that was heard, or this rank's own.
 */
int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err);

/* After all that was submitted so far: this rank submits nothing any more. Once. */
int negotiate_leave(struct negotiation *n, const char *reason, hvd_error *err);

/* Tells the others, as far as it still can, that this rank can't go on. */
void negotiate_abort(struct negotiation *n, const hvd_error *why);

/* Takes the oldest batch out of the run log, NULL: it is empty. The caller frees it. */
struct batch *negotiate_next_batch(struct negotiation *n);

#endif
