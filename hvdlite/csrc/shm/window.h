/* The window: memory that all ranks of one host map, made once and kept.
 *
 * Every rank has in it a doorbell, flags that tell the others how far it is, mailboxes to and
 * from local rank 0, and slots of staging memory through which data passes. Flags count rounds
 * (window collectives work in rounds of one slot a rank) and never go back; each stands alone on a
 * cache line with one writer, so that a wait costs the others nothing. */
#ifndef HVDLITE_SHM_WINDOW_H
#define HVDLITE_SHM_WINDOW_H

#include "shm/copy_policy.h"
#include "shm/doorbell.h"
#include "shm/mailbox.h"

#include <stdalign.h>

enum { WINDOW_SLOTS = 4, WINDOW_SLOT = 256 * 1024 };

/* What a flag counts: the rounds in which this rank has ... */
enum window_flag {
    WINDOW_STAGED,  /* put its input into its slot */
    WINDOW_REDUCED, /* added its part, and put the sum into its slot */
    WINDOW_TAKEN,   /* nothing more to read in anybody's slot */
    WINDOW_FLAGS
};

struct window_line {
    _Alignas(64) _Atomic uint64_t rounds;
};

struct window_rank {
    struct doorbell doorbell;
    struct window_line flags[WINDOW_FLAGS];
    struct mailbox to_leader, from_leader; /* local rank 0 */
    struct copy_board board;               /* that of local rank 0 counts */
    _Alignas(4096) unsigned char slots[WINDOW_SLOTS][WINDOW_SLOT];
};

struct window {
    struct window_rank *ranks;      /* [n], mapped by all */
    int n, self;                    /* ranks of this host; this one's local rank */
    uint64_t rounds;                /* done by this rank so far; equal on all between collectives */
    struct copy_policy copy_policy; /* how much data is written to the slots */
};

/* The memory must be zeroed when the first rank comes. */
size_t window_bytes(int n);
void window_init(struct window *w, void *memory, int n, int self);

/* This rank has done the round. */
void window_raise(struct window *w, enum window_flag flag, uint64_t round);
/* That rank has. */
bool window_raised(const struct window *w, int local_rank, enum window_flag flag, uint64_t round);

/* Slots are used in turns: a round's was used WINDOW_SLOTS rounds ago. */
static inline char *window_slot(const struct window *w, int local_rank, uint64_t round) {
    return (char *)w->ranks[local_rank].slots[round % WINDOW_SLOTS];
}

static inline struct window_rank *window_self(struct window *w) { return &w->ranks[w->self]; }

#endif
