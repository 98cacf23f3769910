/* The window: memory that all ranks of one host map, made once and kept.
 *
 * The window has for each rank a doorbell, flags that show the rank's progress, mailboxes to and
 * from local rank 0, and slots through which data passes. Collectives in the window work in rounds
 * of one slot for each rank; flags count rounds and never decrease. Each flag has one writer and a
 * cache line of its own, so a wait for a flag does not slow other ranks. */
#ifndef HVDLITE_SHM_WINDOW_H
#define HVDLITE_SHM_WINDOW_H

#include "shm/doorbell.h"
#include "shm/mailbox.h"

#include <stdalign.h>

enum { WINDOW_SLOTS = 4, WINDOW_SLOT = 256 * 1024, WINDOW_FAST_PATH = 1 << 20 };

/* The rounds of which this rank has ... */
enum window_flag {
    WINDOW_STAGED,  /* ... written its input to its slot */
    WINDOW_REDUCED, /* ... added its chunk and written the sum to all slots */
    WINDOW_TAKEN,   /* ... done with the slots of other ranks */
    WINDOW_FLAGS
};

struct window_line {
    _Alignas(64) _Atomic uint64_t rounds;
};

enum { WINDOW_CPUS = 1024 };

struct window_cpus {
    _Alignas(64) atomic_int last; /* 1 + the core on which the rank was last seen; 0: none yet */
    _Alignas(64) bool usable[WINDOW_CPUS];
};

struct window_rank {
    struct doorbell doorbell;
    struct window_cpus cpus; /* shm/cpus.h */
    struct window_line flags[WINDOW_FLAGS];
    struct mailbox to_leader, from_leader; /* to and from local rank 0 */
    _Alignas(4096) unsigned char slots[WINDOW_SLOTS][WINDOW_SLOT];
    _Alignas(4096) unsigned char fast_path[WINDOW_FAST_PATH]; /* engine/fast_window.c */
};

struct window {
    struct window_rank *ranks; /* [n], mapped by all */
    int n, self;               /* ranks of this host; this one's local rank */
    uint64_t rounds;           /* done so far; equal on all ranks between collectives */
};

/* The memory must be zeroed before the first rank calls window_init. */
size_t window_bytes(int n);
void window_init(struct window *w, void *memory, int n, int self);

/* Raises this rank's flag: the round is done. */
void window_raise(struct window *w, enum window_flag flag, uint64_t round);
/* That rank has raised the flag for the round. */
bool window_raised(const struct window *w, int local_rank, enum window_flag flag, uint64_t round);

/* Slots take turns: the round WINDOW_SLOTS ago was in the same slot. */
static inline char *window_slot(const struct window *w, int local_rank, uint64_t round) {
    return (char *)w->ranks[local_rank].slots[round % WINDOW_SLOTS];
}

static inline struct window_rank *window_self(struct window *w) { return &w->ranks[w->self]; }

#endif
