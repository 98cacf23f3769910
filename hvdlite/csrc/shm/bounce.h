/* Bounce buffers: memory of a sender for long data; a receiver on the same host maps the memory.
 *
 * The sender fills a free slot and sends the slot's number; the receiver copies the data and sends
 * a message that the slot is free. Zeroed: there is no bounce buffer. The caller owns the struct;
 * one thread at a time. */
#ifndef HVDLITE_SHM_BOUNCE_H
#define HVDLITE_SHM_BOUNCE_H

#include "shm/shmem.h"

enum { BOUNCE_SLOTS = 4, BOUNCE_SLOT = 256 << 10 };

struct bounce {
    char *memory;  /* NULL: no bounce buffer */
    int file;      /* descriptor of the memory in the sender; 0: none */
    bool failed;   /* memory was short: do not try to make a bounce buffer again */
    unsigned busy; /* in the sender: one bit for each slot in use */
};

/* The sender makes the bounce buffer and gets its address; "": none. The receiver maps the bounce
 * buffer; returns false if that fails. Then data must go in messages. */
void bounce_make(struct bounce *l, char address[SHMEM_ADDRESS]);
bool bounce_map(struct bounce *l, const char *address);
void bounce_close(struct bounce *l);

int bounce_take(struct bounce *l); /* takes a free slot; -1: no slot is free */
static inline char *bounce_slot(const struct bounce *l, int slot) {
    return l->memory + (size_t)slot * BOUNCE_SLOT;
}

#endif
