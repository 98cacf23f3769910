/* Cores: those that each rank of a host may use, and the one on which it was last seen, in the
 * window.
 *
 * Each rank writes its own core. Others may read an old value: a rank that has moved writes the new
 * core in its next collective. Any thread of a rank. */
#ifndef HVDLITE_SHM_CPUS_H
#define HVDLITE_SHM_CPUS_H

#include "shm/window.h"

/* Writes which cores this process may use. Once, before any rank asks for its share. */
void cpus_publish(struct window *w);
/* The number of this rank's cores, if the ranks that may use a core share it evenly. 0: not known.
 */
double cpus_share(const struct window *w);
/* A container's limit of processor time, in cores; without a limit WINDOW_CPUS. */
double cpus_quota(void);

/* Writes the core of this thread, which works for its rank. */
void cpus_tell(struct window *w);
/* The same, before a wait. True: another rank of the host was last seen on this core. If this
 * thread waits for that rank and spins, that rank can't run. */
bool cpus_crowded(struct window *w);

#endif
