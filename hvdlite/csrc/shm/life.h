/* Signs of life: which ranks of this host have died.
 *
 * Each rank gives the others its card and watches their processes by pidfds, which report the end
 * of a process however it ends. A death is reported after a short delay, so that messages sent
 * before it still arrive. */
#ifndef HVDLITE_SHM_LIFE_H
#define HVDLITE_SHM_LIFE_H

#include "base/error.h"

#include <stdint.h>

/* What has become of a rank. */
enum fate {
    FATE_DIED,
    FATE_HOST_LOST, /* the host of the rank is lost */
    FATE_SILENT     /* this rank's engine or another one has declared the rank silent */
};

struct life_card {
    /* the pid namespace; only process ids of the same one can be compared; 0: unknown */
    uint64_t space;
    int64_t pid;
    char host[HVD_MAX_HOST];
};

struct life_card life_card_of_this_process(void);

struct life;

/* Watches at most `most` processes. `died` is called on another thread. */
int life_open(struct life **out, int most, void (*died)(void *arg, int rank), void *arg);
/* Watches a process. HVD_RANK_DEAD: the process has already ended; HVD_NO_MEMORY: no file
 * descriptor is left; HVD_UNSUPPORTED: the kernel has no pidfd, or the process is in another pid
 * namespace. */
int life_add(struct life *l, const struct life_card *card, int rank);
int life_start(struct life *l);
void life_close(struct life *l); /* NULL does nothing */

#endif
