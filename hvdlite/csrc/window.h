/* The window: memory that all ranks of one host map, made once and kept.
 *
 * Layer 2. Every rank has in it a bell, flags that tell the others how far it is, mailboxes to and
 * from local rank 0, and slots of staging memory through which data passes. Flags count rounds
 * (window collectives work in rounds of one slot a rank) and never go back; each stands alone on a
 * cache line with one writer, so that a wait costs the others nothing. */
#ifndef HVDLITE_WINDOW_H
#define HVDLITE_WINDOW_H

#include "bell.h"
#include "mailbox.h"

#include <stdalign.h>

enum { WINDOW_SLOTS = 4, WINDOW_SLOT = 256 * 1024 };

/* How many rounds this rank has ... */
struct window_flags {
    _Alignas(64) _Atomic uint64_t staged;  /* put its input of into its slot */
    _Alignas(64) _Atomic uint64_t reduced; /* added its part of, and put the sum into its slot */
    _Alignas(64) _Atomic uint64_t taken;   /* nothing more to read of, in anybody's slot */
};

struct window_member {
    struct bell bell;
    struct window_flags flags;
    struct mailbox to_leader, from_leader; /* local rank 0 */
    _Alignas(4096) unsigned char slots[WINDOW_SLOTS][WINDOW_SLOT];
};

struct window {
    struct window_member *members; /* [n], mapped by all */
    int n, self;                   /* ranks of this host; this one's local rank */
    uint64_t rounds;               /* done by this rank so far; equal on all between collectives */
};

/* The memory must be zeroed when the first rank comes. */
size_t window_bytes(int n);
void window_init(struct window *w, void *memory, int n, int self);

static inline struct window_member *window_self(struct window *w) { return &w->members[w->self]; }

#endif
