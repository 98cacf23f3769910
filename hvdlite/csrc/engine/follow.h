/* What each rank does in a negotiation: it reports its tensors and follows the decisions.
 *
 * Only the stepping thread calls these functions, and none of them blocks. */
#ifndef HVDLITE_ENGINE_FOLLOW_H
#define HVDLITE_ENGINE_FOLLOW_H

#include "engine/negotiate.h"

/* Adds the newly submitted tensors to the message to the coordinator. */
int follow_report(struct negotiation *n, hvd_error *err);

/* Handles a message of a fast-path round. If the round gives a tensor back, reports that tensor. */
int follow_round(struct negotiation *n, struct message *m, hvd_error *err);

/* Reports, after all submitted tensors, that this rank submits nothing more. Call it until n->left
 * is true; it sends one report. */
int follow_leave(struct negotiation *n, const char *reason, hvd_error *err);

/* Follows one item from the coordinator: part of a batch, an error, or a question. */
int follow_decision(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err);

/* Handles another rank's ABORT: keeps its text and fails with that text. */
int follow_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err);

#endif
