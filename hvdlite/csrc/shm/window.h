/* The window: memory that all ranks of one host map, made once and kept.
 *
 * The window has for each rank a doorbell, flags that show the rank's progress, and slots through
 * which data passes. Collectives in the window work in rounds of one slot for each rank; flags
 * count rounds and never decrease. Each flag has one writer and a cache line of its own, so a wait
 * for a flag does not slow other ranks. */
#ifndef HVDLITE_SHM_WINDOW_H
#define HVDLITE_SHM_WINDOW_H

#include "shm/doorbell.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
    struct window_cpus cpus; /* cpus.c */
    struct window_line flags[WINDOW_FLAGS];
    _Alignas(4096) unsigned char slots[WINDOW_SLOTS][WINDOW_SLOT];
    _Alignas(4096) unsigned char fast_path[WINDOW_FAST_PATH]; /* engine/fast_window.c */
};

struct window {
    struct window_rank *ranks; /* array of n, mapped by all */
    int n, self;               /* ranks of this host; this one's local rank */
    uint64_t rounds;           /* rounds done so far; equal on all ranks between collectives */
};

/* The memory must be zeroed before the first rank calls window_init. */
size_t window_bytes(int n);
void window_init(struct window *w, void *memory, int n, int self);

/* Touches the pages that this rank writes, so they are allocated on its NUMA node and later
 * writes do not pay 1.4 us for each first touch. To be called before another rank uses the
 * memory. */
void window_touch(void *memory, int self);

/* Raises this rank's flag to `round`: the rank has done this step of the round. */
void window_raise(struct window *w, enum window_flag flag, uint64_t round);
/* True: that rank has raised the flag to `round` or above. */
bool window_raised(const struct window *w, int local_rank, enum window_flag flag, uint64_t round);

/* A slot serves every WINDOW_SLOTS-th round. */
static inline char *window_slot(const struct window *w, int local_rank, uint64_t round) {
    return (char *)w->ranks[local_rank].slots[round % WINDOW_SLOTS];
}

static inline struct window_rank *window_self(struct window *w) { return &w->ranks[w->self]; }

/* ---- cores: cpus.c ----
 *
 * The window shows which cores each rank of the host may use, and the core on which the rank was
 * last seen. Each rank writes its own core. Others may read an old value: a rank that has moved
 * writes the new core in its next collective. Any thread of a rank. */

/* Publishes which cores this process may use. Called once, before any rank asks for its share. */
void cpus_publish(struct window *w);
/* This rank's share of the cores, in cores: the ranks that may use a core divide it evenly. 0:
 * not known. */
double cpus_share(const struct window *w);
/* The container's limit of processor time, in cores; WINDOW_CPUS without a limit. */
double cpus_quota(void);

/* Publishes the core on which the calling thread runs as this rank's core. */
void cpus_tell(struct window *w);
/* The same, before a wait. True: another rank of the host was last seen on this core. If this
 * thread waits for that rank and spins, that rank can't run. */
bool cpus_crowded(struct window *w);

/* ---- copies of memory that two cores write in turn, cache line by cache line: lines.c ----
 *
 * A core that stores to a line which another core has read must wait until that core drops the
 * line. But a line that a core reads and then writes is handed over with the right to write it. So
 * the only reader of another rank's data also writes to it: sums, or the same bytes. Two cores of
 * an AMD EPYC that share only the last cache pass on 64 KB in 10 us this way, and in 34 us
 * otherwise. */

/* Copies lines. A rank that sees a flag raised after the copy (memory_order_release) also sees
 * the copy. */
void lines_copy(void *to, const void *from, size_t bytes);
/* Writes back, unchanged, the lines that this rank has just read. */
void lines_take_over(void *lines, size_t bytes);
/* lines_copy, then lines_take_over of the lines that were read. */
void lines_copy_over(void *to, void *from, size_t bytes);

#endif
