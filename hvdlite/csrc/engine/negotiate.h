/* Negotiation: between this rank and the coordinator, up to the run log.
 *
 * Submitted tensors become items of a message to the coordinator, whole the first time, a cache
 * id later. The coordinator's decisions become batches in the run log, or errors. Rank 0 drives
 * the coordinator from here and talks to it without the transport. Both ways lead by the tree. The
 * engine's thread; nothing blocks. */
#ifndef HVDLITE_ENGINE_NEGOTIATE_H
#define HVDLITE_ENGINE_NEGOTIATE_H

#include "engine/state.h"

/* Rank 0 gets a coordinator of this configuration. negotiate_close also takes a zeroed struct. */
int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, const struct log *log, hvd_error *err);
void negotiate_close(struct negotiation *n);

/* Sends what was submitted, handles what arrived, decides. Sets *progress if it did anything. An
 * error ends the job: another rank's ABORT, a rank that is silent, or this rank's own failure. */
int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err);

/* Tells the other ranks, as far as possible, that this rank can't go on. */
void negotiate_abort(struct negotiation *n, const hvd_error *why);

/* A batch of the run log has run. */
void negotiate_finished(struct negotiation *n);

#endif
