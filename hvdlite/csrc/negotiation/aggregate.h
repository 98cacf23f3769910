/* Aggregate: a rank combines its own reports with the reports of the ranks below it in the tree,
 * and passes them up.
 *
 * If the whole branch has submitted a cached tensor, the tensor goes up as one item, so the
 * coordinator receives one message per branch. Waiting for the last rank of the branch costs
 * nothing, because the coordinator can't run the tensor without that rank. After AGGREGATE_SECONDS
 * the waiting reports go up, and later reports go up immediately, because the coordinator also
 * reports stalls and fails tensors of ranks that have left. If a tensor has changed on a rank (an
 * allgather's rows, for example), the rank's report goes up immediately, too. Pure: the time is an
 * argument. */
#ifndef HVDLITE_NEGOTIATION_AGGREGATE_H
#define HVDLITE_NEGOTIATION_AGGREGATE_H

#include "base/map.h"
#include "negotiation/tree.h"
#include "negotiation/wire.h"

/* Seconds; chosen, not measured. If shorter, a slightly late rank makes each rank of its branch
 * send a message. If longer, the coordinator learns later of failures and stalls. */
#define AGGREGATE_SECONDS 20e-3
#define AGGREGATE_FORGETS 10 /* seconds for which reports of a late tensor are not combined */

struct aggregated;

/* aggregate_close accepts a zeroed struct. */
struct aggregate {
    const struct tree *tree;
    struct map ids; /* from a tensor's cache id to its struct aggregated */
    struct aggregated *newest;
    double due;  /* the earliest `due` of all tensors */
    bool passes; /* true: no report waits, because a rank of the branch has joined or left */
};

void aggregate_open(struct aggregate *a, const struct tree *tree);
void aggregate_close(struct aggregate *a);

/* Takes a REQUEST, HIT, HITS or LEAVE from this rank or from the child `from`; appends the items
 * that must go up now to `out`. */
int aggregate_take(struct aggregate *a, int from, const struct wire_item *item, double now,
                   struct wire_writer *out, hvd_error *err);
/* Appends the reports that have waited AGGREGATE_SECONDS. Call it often. */
int aggregate_late(struct aggregate *a, double now, struct wire_writer *out, hvd_error *err);
/* Returns for how many seconds this rank may sleep: at most `longest`. */
double aggregate_sleep(const struct aggregate *a, double now, double longest);

/* Records that the coordinator has decided the tensor: later reports belong to the tensor's next
 * use. */
void aggregate_decided(struct aggregate *a, uint64_t id);
/* Records that every rank has called join(): the join has ended, and all ranks submit tensors
 * again. */
void aggregate_joined(struct aggregate *a);

#endif
