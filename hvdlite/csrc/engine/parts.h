/* Parts: the rows that one rank gives or gets in an allgather, a reducescatter or an alltoall.
 *
 * Only the engine's stepping thread calls this function. */
#ifndef HVDLITE_ENGINE_PARTS_H
#define HVDLITE_ENGINE_PARTS_H

#include "collectives/coll.h"
#include "engine/execute.h"

/* Sets the ends of the parts, the input and the output in `args`. For an alltoall, the ranks may
 * exchange their splits first. Allocates the tensor's output if ranks may give any number of rows.
 * The ends are in x->fusion. */
int parts_prepare(struct executor *x, struct tensor *tensor, struct coll_args *args,
                  hvd_error *err);

#endif
