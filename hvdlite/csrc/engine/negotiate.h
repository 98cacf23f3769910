/* Negotiation between this rank and the coordinator. Its result is the run log.
 *
 * Submitted tensors become items of a message to the coordinator: the whole request at first, later
 * only a cache id. The coordinator's decisions become batches in the run log, or errors. Rank 0
 * calls its coordinator directly, without the transport. Messages go up and down the tree. Only the
 * stepping thread calls these functions, and none of them blocks. */
#ifndef HVDLITE_ENGINE_NEGOTIATE_H
#define HVDLITE_ENGINE_NEGOTIATE_H

#include "engine/fast_path.h"
#include "engine/p2p.h"
#include "negotiation/aggregate.h"
#include "negotiation/cache.h"
#include "negotiation/coordinator.h"
#include "negotiation/watch.h"

enum { COORDINATOR = 0 };

struct negotiation {
    struct transport *t;
    struct tensors *tensors;
    struct fast_path *fast;
    struct p2p *p2p;
    struct cache *cache;             /* the requests that this rank has sent */
    struct coordinator *coordinator; /* NULL except on rank 0 */
    struct wire_writer out, decided; /* the next messages up the tree and down the tree */
    double now;                      /* time of this step, by clock_now */
    struct run_log run_log;
    struct flight *flight; /* NULL: no recorder */
    int group;             /* number of the group in the flight recorder */
    bool left;             /* this rank has sent LEAVE */
    struct tensor *joins;  /* a join that waits for the end of this rank's rounds; NULL: none */
    struct tree tree;
    struct aggregate aggregate;
    struct watch watch;
    double reported; /* time of submission of the last send or receive that was reported as late */
    const struct log *log;
    hvd_error lost; /* the error about a silent rank; code 0: none */
    int lost_rank;
    hvd_error abort_cause; /* the cause in another rank's ABORT; code 0: no ABORT has arrived */
    bool sent_abort;
    bool bye; /* every rank has left */
};

/* On rank 0 also opens a coordinator with this configuration. negotiate_close accepts a zeroed
 * struct. */
int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, const struct log *log, hvd_error *err);
void negotiate_close(struct negotiation *n);

/* Reports submitted tensors, handles messages and decides. Sets *progress if it had anything to do.
 * An error ends the job: another rank's ABORT, a silent rank, or a failure of this rank. */
int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err);

/* Tells the other ranks that this rank can't continue, if they can still be reached. */
void negotiate_abort(struct negotiation *n, const hvd_error *why);

/* Records that the oldest batch of the run log has finished. */
void negotiate_finished(struct negotiation *n);

/* ---- rank 0: the coordinator ---- */
/* Configures batches and pieces so that equal inputs give results with equal bits. */
void coordinate_in_order(struct coordinator_config *c, const struct comm *all);

#endif
