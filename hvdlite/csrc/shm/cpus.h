/* Cores: the one on which each rank of a host was last seen, in the window.
 *
 * Each rank writes its own core. Others may read an old value: a rank that has moved writes the new
 * core in its next collective. Any thread of a rank. */
#ifndef HVDLITE_SHM_CPUS_H
#define HVDLITE_SHM_CPUS_H

#include "shm/window.h"

/* Writes the core of this thread, which works for its rank. */
void cpus_tell(struct window *w);
/* The same, before a wait. True: another rank of the host was last seen on this core. If this
 * thread waits for that rank and spins, that rank can't run. */
bool cpus_crowded(struct window *w);

#endif
