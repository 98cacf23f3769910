/* Ahead: how much the coordinator decides ahead of the ranks.
 *
 * A decided tensor can't be overtaken or fused any more; a tensor that is decided too late leaves
 * the links idle. So one piece is under way, and the next piece is decided shortly before its end.
 * All ranks run the log in order, so the progress of the coordinator's own rank stands for all.
 * Pure: the clock is an argument. */
#ifndef HVDLITE_NEGOTIATION_AHEAD_H
#define HVDLITE_NEGOTIATION_AHEAD_H

#include "base/error.h"

/* The most bytes that are decided and not finished. AHEAD_MEASURED: from the rate at which batches
 * finish. AHEAD_UNLIMITED: every ready tensor is decided. */
#define AHEAD_MEASURED SIZE_MAX
#define AHEAD_UNLIMITED ((size_t)0)

enum { AHEAD_RATES = 9 };

struct ahead_batch {
    size_t bytes;
    double decided; /* when */
};

/* Zeroed: unlimited. */
struct ahead {
    size_t bytes_ahead;       /* as above */
    struct ahead_batch *ring; /* decided and not finished, the oldest at `first` */
    size_t first, n, capacity;
    size_t bytes;              /* of these */
    double finished;           /* when the last batch did */
    double rates[AHEAD_RATES]; /* of the last large batches, bytes per second */
    size_t measured;           /* how many there were */
    double rate;               /* their median; 0: none */
};

void ahead_free(struct ahead *a);

/* The most bytes that a batch should have, because an urgent tensor waits for them. SIZE_MAX: no
 * limit. */
size_t ahead_piece(const struct ahead *a);

/* A batch of so many bytes may be decided now. */
bool ahead_takes(const struct ahead *a, size_t bytes, double now);

/* When the next batch of any size may be decided; INFINITY: not before a batch has finished. */
double ahead_opens(const struct ahead *a);

int ahead_decided(struct ahead *a, size_t bytes, double now, hvd_error *err);
void ahead_finished(struct ahead *a, double now); /* the oldest batch */

#endif
