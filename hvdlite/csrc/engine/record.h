/* What is noted of a tensor on its way: by the flight recorder always, by the timeline if it is on.
 *
 * The engine's thread. */
#ifndef HVDLITE_ENGINE_RECORD_H
#define HVDLITE_ENGINE_RECORD_H

#include "engine/run_log.h"
#include "engine/timeline.h"
#include "shm/flight.h"

/* The coordinator will be told of the tensor; `again`: it knows it. */
void record_reported(struct flight *flight, int group, struct tensor *tensor, bool again);
/* All ranks have submitted the batch's tensors. */
void record_agreed(struct flight *flight, const struct batch *batch);
void record_failed(struct flight *flight, const struct tensor *tensor, double now);

/* flight, timeline NULL: none. Returns when the batch started; 0: nobody wants to know. */
double record_started(struct flight *flight, struct timeline *timeline, const struct batch *batch);
/* Before its tensors complete. */
void record_ended(struct flight *flight, struct timeline *timeline, const struct batch *batch,
                  double started);

#endif
