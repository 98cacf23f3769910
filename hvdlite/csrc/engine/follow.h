/* A rank's own half of the negotiation: it reports its tensors and follows what was decided.
 *
 * The engine's thread. */
#ifndef HVDLITE_ENGINE_FOLLOW_H
#define HVDLITE_ENGINE_FOLLOW_H

#include "engine/state.h"

/* Adds to the message to the coordinator all that was submitted since the last call. */
int follow_report(struct negotiation *n, hvd_error *err);

/* A message of a round without the coordinator, to whom a tensor may come back. */
int follow_round(struct negotiation *n, struct message *m, hvd_error *err);

/* Reports, after all that was submitted so far, that this rank submits nothing any more. Once; call
 * it until it has left. */
int follow_leave(struct negotiation *n, const char *reason, hvd_error *err);

/* One item from the coordinator: a part of a batch, an error, a question. */
int follow_decision(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err);

/* Another rank's ABORT: keeps its text and fails with it. */
int follow_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err);

#endif
