/* Signs of life: which ranks of this host have died.
 *
 * Each rank gives the others its card, and watches their processes through file descriptors of the
 * kernel (pidfd), which a killed process can't leave behind. A death is
 * reported after a short delay, so that messages sent before it still arrive. */
#ifndef HVDLITE_SHM_LIFE_H
#define HVDLITE_SHM_LIFE_H

#include <stdint.h>

enum { LIFE_HOST = 64 };

/* What is known of a rank that can't go on. */
enum fate {
    FATE_DIED,
    FATE_HOST_LOST, /* it was not seen to die: its host has vanished */
    FATE_SILENT     /* an engine, here or elsewhere, has given it up */
};

struct life_card {
    uint64_t space; /* process ids of the same space can be compared; 0: unknown */
    int64_t pid;
    char host[LIFE_HOST];
};

struct life_card life_card_of_this_process(void);

struct life;

/* At most `most` processes; `died` is called on another thread. */
int life_open(struct life **out, int most, void (*died)(void *arg, int rank), void *arg);
/* Fails where the kernel has no pidfd, or the process is in another space. */
int life_add(struct life *l, const struct life_card *card, int rank);
int life_start(struct life *l);
void life_close(struct life *l); /* NULL does nothing */

#endif
