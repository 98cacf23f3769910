/* Ranks that fall silent: asks those that this rank waits for, answers, reports and ends the job.
 *
 * A member waits for the coordinator and for those that pass its decisions on; the coordinator for
 * all ranks. A part of the negotiation, on the engine's thread. */
#ifndef HVDLITE_ENGINE_SILENCE_H
#define HVDLITE_ENGINE_SILENCE_H

#include "engine/state.h"

/* Seconds until tensors are reported, or fail; 0: never. The transport has the limit of waits for
 * data. */
void silence_limits(struct negotiation *n, const struct options *options);

/* Call it in each step. Reports stalls and silence; fails after the limit with HVD_RANK_DEAD. */
int silence_look(struct negotiation *n, hvd_error *err);

/* Another rank asks whether this one is there. */
int silence_answer(struct negotiation *n, int from, hvd_error *err);

/* The coordinator's report of a silent rank, for the other ranks that wait. */
void silence_report(struct negotiation *n, int rank, const char *text);

/* Adds to a failure of data which ranks do not answer. */
void silence_blame(const struct negotiation *n, hvd_error *why);

#endif
