/* The choice among the algorithms of an allreduce, in words for the log.
 *
 * "recursive doubling up to 16 KiB, circulant up to 64 KiB, then ring": of float32. */
#ifndef HVDLITE_ENGINE_CHOICES_H
#define HVDLITE_ENGINE_CHOICES_H

#include "collectives/coll.h"

/* Cut where `size` bytes are too few. */
void choices_text(const struct comm *comm, char *text, size_t size);

#endif
