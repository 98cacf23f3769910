/* Finds ranks that do not answer.
 *
 * The coordinator waits for all ranks. Any other rank waits for the coordinator, for the ranks
 * between itself and the coordinator in the tree, and for the peers of its sends and receives.
 * Only the stepping thread calls these functions, and none of them blocks. */
#ifndef HVDLITE_ENGINE_SILENCE_H
#define HVDLITE_ENGINE_SILENCE_H

#include "engine/negotiate.h"

/* Reads two limits from the options: the seconds until a silent rank is reported, and until it
 * makes the job fail; 0: never. */
void silence_limits(struct negotiation *n, const struct options *options);

/* Reports stalls and silent ranks. Fails with HVD_RANK_DEAD if a rank has been silent for longer
 * than the limit. Called in each step. */
int silence_look(struct negotiation *n, hvd_error *err);

/* Answers another rank's ASK. */
int silence_answer(struct negotiation *n, int from, hvd_error *err);

/* Handles the coordinator's report of a silent rank: logs it if this rank waits for a tensor. */
void silence_report(struct negotiation *n, int rank, const char *text);

/* Adds the silent ranks to the error of a failed transfer: to its text and to its blamed ranks. */
void silence_blame(const struct negotiation *n, hvd_error *why);

#endif
