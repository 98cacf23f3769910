/* What a rank and those below it in the tree submit, on its way up to the coordinator.
 *
 * A cached tensor that all of them have submitted goes up as one item, so the coordinator gets
 * one message a branch. It waits here for the last of them, which costs nothing: the coordinator can't run
 * it sooner. After GATHER_SECONDS what there is goes up all the same, and what follows at once,
 * because the coordinator also reports stalls and fails what waits for a rank that has left. So it is
 * with a tensor that has changed on some rank, as the rows of an allgather do. Pure; the clock is an
 * argument. */
#ifndef HVDLITE_NEGOTIATION_GATHER_H
#define HVDLITE_NEGOTIATION_GATHER_H

#include "base/map.h"
#include "negotiation/tree.h"
#include "negotiation/wire.h"

#define GATHER_SECONDS 20e-3
#define GATHER_FORGETS 10 /* seconds, after which what follows may wait again */

struct gathered;

/* Zeroed: closed. */
struct gather {
    const struct tree *tree;
    struct map ids; /* of struct gathered */
    struct gathered *newest;
    double due;  /* nothing here is due before */
    bool passes; /* a rank below submits nothing any more, so no tensor is whole */
};

void gather_open(struct gather *g, const struct tree *tree);
void gather_close(struct gather *g);

/* Takes a REQUEST, HIT, HITS or LEAVE of this rank or from a child, `from`; appends to `out` what
 * goes up now. */
int gather_take(struct gather *g, int from, const struct wire_item *item, double now,
                struct wire_writer *out, hvd_error *err);
/* Appends what has waited long enough. Call it often. */
int gather_late(struct gather *g, double now, struct wire_writer *out, hvd_error *err);
/* How long this rank may sleep. */
double gather_sleep(const struct gather *g, double now, double longest);

/* A cached tensor is decided: what comes of it from now on is another. */
void gather_decided(struct gather *g, uint64_t id);
/* All ranks have joined, so that they submit again. */
void gather_joined(struct gather *g);

#endif
