/* What this rank tells the coordinator of its own tensors.
 *
 * A part of the negotiation, on the engine's thread. */
#ifndef HVDLITE_ENGINE_SAY_H
#define HVDLITE_ENGINE_SAY_H

#include "engine/negotiate.h"

/* Adds to the message to the coordinator all that was submitted since the last call. */
int negotiate_say_submitted(struct negotiation *n, hvd_error *err);

/* Adds the whole request. `asked`: the id of the RESEND that this answers, else 0. */
int negotiate_say_whole(struct negotiation *n, struct tensor *tensor, uint64_t asked,
                        hvd_error *err);

/* Gives the tensor its rows of every rank; nrows 0: leaves those it has. */
int negotiate_keep_rows(struct tensor *tensor, const int64_t *rows, size_t nrows, hvd_error *err);

#endif
