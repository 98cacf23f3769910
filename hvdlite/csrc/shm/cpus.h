/* Cores: the one on which each rank of a host was last seen, in the window.
 *
 * Each rank writes its own. What others read may be old: a rank that has moved tells so in its next
 * collective. Any thread of a rank. */
#ifndef HVDLITE_SHM_CPUS_H
#define HVDLITE_SHM_CPUS_H

#include "shm/window.h"

/* Tells the others on which core this thread works for its rank. */
void cpus_tell(struct window *w);
/* The same, before a wait. True: another rank of the host was last seen on this core. If it is the
 * one that this thread waits for, it can't go on while this thread spins. */
bool cpus_crowded(struct window *w);

#endif
