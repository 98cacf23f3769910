/* Ahead: how much the coordinator decides before the ranks need it.
 *
 * A decided tensor can't be overtaken or fused any more; a tensor that is decided too late leaves
 * the links idle. So one piece is under way, and the next piece is decided shortly before its end.
 * All ranks run the log in order, so the progress of the coordinator's own rank stands for all.
 * Pure: the clock is an argument. */
#ifndef HVDLITE_NEGOTIATION_AHEAD_H
#define HVDLITE_NEGOTIATION_AHEAD_H

#include "base/error.h"

/* The most bytes that may be decided and not finished. AHEAD_MEASURED: computed from the rate at
 * which batches finish. AHEAD_UNLIMITED: no limit. */
#define AHEAD_MEASURED SIZE_MAX
#define AHEAD_UNLIMITED ((size_t)0)

enum { AHEAD_RATES = 9 };

struct ahead_batch {
    size_t bytes;
    double decided; /* when */
};

/* A zeroed struct ahead has no limit. */
struct ahead {
    size_t bytes_ahead;       /* the limit, see above */
    struct ahead_batch *ring; /* batches that are decided and not finished, the oldest at `first` */
    size_t first, n, capacity;
    size_t bytes;              /* bytes of the batches in the ring */
    double finished;           /* when the last batch finished */
    double rates[AHEAD_RATES]; /* rates of the last large batches, in bytes per second */
    size_t measured;           /* number of large batches so far */
    double rate;               /* their median; 0: none */
};

void ahead_free(struct ahead *a);

/* The most bytes that a batch should have, so that an urgent tensor does not wait long for it.
 * SIZE_MAX: no limit. */
size_t ahead_piece(const struct ahead *a);

/* A batch of so many bytes may be decided now. */
bool ahead_takes(const struct ahead *a, size_t bytes, double now);

/* When the next batch of any size may be decided; INFINITY: not before a batch has finished. */
double ahead_opens(const struct ahead *a);

int ahead_decided(struct ahead *a, size_t bytes, double now, hvd_error *err);
void ahead_finished(struct ahead *a, double now); /* the oldest batch has finished */

#endif
