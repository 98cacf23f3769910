/* Signs of life: detects which ranks of this host have died.
 *
 * Each rank sends its struct life_card to the other ranks, and watches their processes through
 * pidfds. A pidfd reports the end of a process, however the process ends. A death is reported after
 * a short delay, so that messages sent before the death still arrive. */
#ifndef HVDLITE_SHM_LIFE_H
#define HVDLITE_SHM_LIFE_H

#include "base/error.h"

#include <stdint.h>

/* What has happened to a rank. */
enum fate {
    FATE_DIED,
    FATE_HOST_LOST, /* the rank's host is lost */
    FATE_SILENT,    /* an engine, of this rank or another, has declared the rank silent */
    FATES
};

struct life_card {
    /* the pid namespace: process ids can be compared only inside one namespace; 0: unknown */
    uint64_t space;
    int64_t pid;
    char host[HVD_MAX_HOST];
};

struct life_card life_card_of_this_process(void);

struct life;

/* Prepares to watch at most `most` processes. A separate thread calls `died` for each dead rank. */
int life_open(struct life **out, int most, void (*died)(void *arg, int rank), void *arg);
/* Watches a process. Returns HVD_RANK_DEAD if the process has already ended, HVD_NO_MEMORY if no
 * file descriptor is left, HVD_UNSUPPORTED if the kernel has no pidfd or the process is in another
 * pid namespace. */
int life_add(struct life *l, const struct life_card *card, int rank);
int life_start(struct life *l);
void life_close(struct life *l); /* NULL does nothing */

#endif
