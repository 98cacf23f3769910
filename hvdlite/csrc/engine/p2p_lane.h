/* A lane: memory of a sender's that another rank of its host maps, for long data between the two.
 *
 * Data passes through slots. The sender takes a free one, fills it and tells the receiver, which
 * copies it and says so; then the slot is free. A zeroed lane is none. The stepping thread's. */
#ifndef HVDLITE_ENGINE_P2P_LANE_H
#define HVDLITE_ENGINE_P2P_LANE_H

#include "shm/shmem.h"

enum { LANE_SLOTS = 4, LANE_SLOT = 256 << 10 };

struct lane {
    char *memory;  /* NULL: none */
    int file;      /* the sender's; 0: none */
    bool failed;   /* there was no memory: no other try */
    unsigned busy; /* a bit for each slot; the sender's */
};

/* The sender makes it, the receiver maps it. False: it can't be; data must go in messages. */
bool lane_make(struct lane *l, char address[SHMEM_ADDRESS]);
bool lane_map(struct lane *l, const char *address);
void lane_close(struct lane *l);

int lane_take(struct lane *l); /* a slot; -1: all are busy */
static inline char *lane_slot(const struct lane *l, int slot) {
    return l->memory + (size_t)slot * LANE_SLOT;
}

#endif
