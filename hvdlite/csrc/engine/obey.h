/* What every rank does on the coordinator's word: batches for the run log, errors, answers.
 *
 * A part of the negotiation, on the engine's thread. */
#ifndef HVDLITE_ENGINE_OBEY_H
#define HVDLITE_ENGINE_OBEY_H

#include "engine/negotiate.h"

int negotiate_obey(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err);

/* Another rank's ABORT: keeps its words and fails with them. */
int negotiate_hear_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err);

#endif
