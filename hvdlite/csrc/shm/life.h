/* Signs of life: which ranks of this host have died.
 *
 * Each rank gives the others its card and watches their processes by pidfds, which report the end
 * of a process however it ends. A death is reported after a short delay, so that messages sent
 * before it still arrive. */
#ifndef HVDLITE_SHM_LIFE_H
#define HVDLITE_SHM_LIFE_H

#include <stdint.h>

enum { LIFE_HOST = 64 };

/* Why a rank can't go on. */
enum fate {
    FATE_DIED,
    FATE_HOST_LOST, /* its host is lost */
    FATE_SILENT     /* an engine, here or elsewhere, has given it up */
};

struct life_card {
    uint64_t space; /* the pid namespace: process ids of one can be compared; 0: unknown */
    int64_t pid;
    char host[LIFE_HOST];
};

struct life_card life_card_of_this_process(void);

struct life;

/* At most `most` processes; `died` is called on another thread. */
int life_open(struct life **out, int most, void (*died)(void *arg, int rank), void *arg);
/* HVD_RANK_DEAD: it has ended already; HVD_NO_MEMORY: no descriptor is left; HVD_UNSUPPORTED: the
 * kernel has no pidfd, or the process is in another space. */
int life_add(struct life *l, const struct life_card *card, int rank);
int life_start(struct life *l);
void life_close(struct life *l); /* NULL does nothing */

#endif
