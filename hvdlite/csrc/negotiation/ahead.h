/* Ahead: limits the bytes of the batches that the coordinator has decided and that still run.
 *
 * A decided tensor can no longer be overtaken or fused, but if a tensor is decided too late, the
 * links are idle. So the coordinator decides the next batch shortly before the running batch ends.
 * All ranks run the same batches in the same order, so the coordinator takes its own rank's
 * progress for the progress of all ranks. Pure: the time is an argument. */
#ifndef HVDLITE_NEGOTIATION_AHEAD_H
#define HVDLITE_NEGOTIATION_AHEAD_H

#include "base/error.h"

/* The maximum bytes decided but not finished. AHEAD_MEASURED: computed from the rate at
 * which batches finish. AHEAD_UNLIMITED: no limit. */
#define AHEAD_MEASURED SIZE_MAX
#define AHEAD_UNLIMITED ((size_t)0)

/* Number of rates of which ahead.c takes the median; odd, so that the median is one of the rates.
 * Chosen, not measured: with more rates, the median follows a change of the links later; with fewer
 * rates, some slow batches change the median. */
enum { AHEAD_RATES = 9 };

struct ahead_batch {
    size_t bytes;
    double decided; /* time of the decision */
};

/* A zeroed struct ahead has no limit. */
struct ahead {
    size_t bytes_ahead;       /* the limit: a number of bytes or one of the constants above */
    struct ahead_batch *ring; /* batches that are decided but not finished, the oldest at `first` */
    size_t first, n, capacity;
    size_t bytes;              /* bytes of the batches in the ring */
    double finished;           /* time when the last batch finished */
    double rates[AHEAD_RATES]; /* rates of the last large batches, in bytes per second */
    size_t measured;           /* number of large batches so far */
    double rate;               /* the median of `rates`; 0: none */
};

void ahead_free(struct ahead *a);

/* Returns how many bytes a batch should have at most, so that an urgent tensor does not wait long
 * for the batch to end. SIZE_MAX: no limit. */
size_t ahead_piece(const struct ahead *a);

/* Returns whether a batch of `bytes` may be decided now. Small batches, with up to ahead_piece
 * bytes together, may be decided at the same time, so that no rank waits for decisions. */
bool ahead_takes(const struct ahead *a, size_t bytes, double now);

/* Returns when the next batch of any size may be decided. INFINITY: only after a batch has
 * finished. */
double ahead_opens(const struct ahead *a);

int ahead_decided(struct ahead *a, size_t bytes, double now, hvd_error *err);
void ahead_finished(struct ahead *a, double now); /* records that the oldest batch has ended */

#endif
