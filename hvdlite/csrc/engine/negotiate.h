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
    struct tensor *joins;  /* a join that waits for the end of fast-path rounds; NULL: none */
    struct tree tree;
    struct aggregate aggregate;
    struct watch watch;
    double reported; /* `submitted` of the last send or receive that was reported as late */
    double stall;    /* seconds after which an unmatched send or receive fails; 0: never */
    const struct log *log;
    hvd_error lost; /* the error about a silent rank; code 0: none */
    int lost_rank;
    hvd_error abort_cause; /* the cause in another rank's ABORT; code 0: no ABORT has arrived */
    bool sent_abort;
    bool bye; /* every rank has left */
};

/* Opens the negotiation; on rank 0 also opens a coordinator with this configuration.
 * negotiate_close accepts a zeroed struct. */
int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, const struct log *log, hvd_error *err);
void negotiate_close(struct negotiation *n);

/* Reports submitted tensors, handles messages and decides. Sets *progress if it had anything to do.
 * An error ends the job: another rank's ABORT, a silent rank, or a failure of this rank. */
int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err);

/* Tells the other ranks that this rank can't continue, if they can still be reached. */
void negotiate_abort(struct negotiation *n, const hvd_error *why);

/* ---- rank 0: the coordinator ---- */
/* Limits batches and the cuts of tensors so that equal inputs give results with equal bits. */
void coordinate_in_order(struct coordinator_config *c, const struct comm *all);

/* ---- this rank's reports, and the decisions that it follows: follow.c ---- */
/* Adds the newly submitted tensors to the message to the coordinator. */
int follow_report(struct negotiation *n, hvd_error *err);

/* Handles a message of a fast-path round. If the round ends without a result, reports this rank's
 * tensor to the coordinator. */
int follow_round(struct negotiation *n, struct message *m, hvd_error *err);

/* Reports, after all submitted tensors, that this rank submits nothing more. Waits for fast-path
 * rounds, so call it until n->left is true. */
int follow_leave(struct negotiation *n, const char *reason, hvd_error *err);

/* Handles one item. On the coordinator it is an item of the coordinator's own decisions; on other
 * ranks it is an item of a received message. */
int follow_decision(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err);

/* Handles another rank's ABORT: keeps its text and fails with that text. */
int follow_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err);

/* ---- ranks that do not answer: silence.c ----
 *
 * The coordinator waits for all ranks. Any other rank waits for the coordinator, for the ranks
 * between itself and the coordinator in the tree, and for the peers of its sends and receives. */

/* Reads two limits from the options: the seconds until a silent rank is reported, and the seconds
 * until a silent rank makes the job fail; 0: never. */
void silence_limits(struct negotiation *n, const struct options *options);

/* Reports stalls and silent ranks. Fails with HVD_RANK_DEAD if a rank has been silent for longer
 * than the limit. Called in each step. */
int silence_look(struct negotiation *n, hvd_error *err);

/* Answers another rank's ASK. */
int silence_answer(struct negotiation *n, int from, hvd_error *err);

/* Logs a report of a silent rank, if this rank is the coordinator or waits for a tensor. */
void silence_report(struct negotiation *n, int rank, const char *text);

/* If a rank is silent, names the lowest silent rank in the error of a failed transfer, and blames
 * only this rank. */
void silence_blame(const struct negotiation *n, hvd_error *why);

#endif
