/* Rank 0's half of the negotiation: it gives its coordinator what the ranks report.
 *
 * The engine's thread. */
#ifndef HVDLITE_ENGINE_COORDINATE_H
#define HVDLITE_ENGINE_COORDINATE_H

#include "engine/state.h"

/* Batches and pieces for which equal inputs give equal bits. */
void coordinate_in_order(struct coordinator_config *c, const struct comm *all);
int coordinate_item(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err);

#endif
