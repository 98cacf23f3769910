/* Negotiation: between this rank and the coordinator, up to the run log.
 *
 * Submitted tensors become items of a message to the coordinator, whole the first time, a cache
 * id later. The coordinator's decisions become batches in the run log, or errors. Rank 0 drives
 * the coordinator from here and talks to it without the transport. Both ways lead by the tree. The
 * engine's thread; nothing blocks. */
#ifndef HVDLITE_ENGINE_NEGOTIATE_H
#define HVDLITE_ENGINE_NEGOTIATE_H

#include "base/log.h"
#include "engine/tensors.h"
#include "negotiation/cache.h"
#include "negotiation/coordinator.h"
#include "negotiation/gather.h"
#include "negotiation/tree.h"
#include "negotiation/watch.h"
#include "shm/flight.h"
#include "transport/transport.h"

/* What a batch moves of a tensor: all, or a piece. */
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

struct negotiation {
    struct transport *t;
    struct tensors *tensors;
    struct cache *cache;             /* of this rank */
    struct coordinator *coordinator; /* on rank 0, else NULL */
    struct wire_writer out, decided; /* messages: up the tree, down the tree */
    double now;                      /* of this step, by clock_now */
    struct batch *first, **last;     /* the run log: batches that have not run */
    struct batch_piece *open;        /* since the last RUN */
    size_t nopen, open_capacity;
    uint64_t nbatches;     /* appended so far */
    struct flight *flight; /* NULL: none */
    int group;             /* its number there */
    bool left;             /* this rank has sent LEAVE */
    struct tree tree;
    struct gather gather;
    struct watch watch;
    const struct log *log;
    hvd_error lost; /* a rank is silent; code 0: none */
    int lost_rank;
    hvd_error heard; /* another rank's ABORT, in that rank's words; code 0: none */
    bool said_abort;
    bool bye; /* every rank has left */
};

enum { COORDINATOR = 0 };

/* Rank 0 gets a coordinator of this configuration. negotiate_close also takes a zeroed struct. */
int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, const struct log *log, hvd_error *err);
void negotiate_close(struct negotiation *n);

/* Sends what was submitted, handles what arrived, decides. Sets *progress if it did anything. An
 * error ends the job: another rank's ABORT, a rank that is silent, or this rank's own failure. */
int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err);

/* Says, after all that was submitted so far, that this rank submits nothing any more. Once. */
int negotiate_leave(struct negotiation *n, const char *reason, hvd_error *err);

/* Tells the other ranks, as far as possible, that this rank can't go on. */
void negotiate_abort(struct negotiation *n, const hvd_error *why);

/* Takes the oldest batch from the run log; NULL: it is empty. The caller frees it, and says when it
 * has run. */
struct batch *negotiate_next_batch(struct negotiation *n);
void negotiate_finished(struct negotiation *n);

#endif
