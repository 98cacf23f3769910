/* The window: memory that all ranks of one host map, made once and kept.
 *
 * For each rank the window has a doorbell, flags that show the rank's progress, and slots that
 * carry data. Collectives in the window work in rounds; in a round each rank uses one slot. Flags
 * count rounds and never decrease. Each flag has one writer and its own cache line, so waiting for
 * a flag does not slow other ranks. */
#ifndef HVDLITE_SHM_WINDOW_H
#define HVDLITE_SHM_WINDOW_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- doorbells: doorbell.c, the only file that uses futexes ----
 *
 * A doorbell wakes a sleeping rank, even from another process of its host. A zeroed doorbell is
 * ready. One thread sleeps on a doorbell; any thread of any process rings it. */

/* Fills a cache line, so that ringing does not slow accesses to neighboring data. */
struct doorbell {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep; /* 0: no thread sleeps */
};

void doorbell_ring(struct doorbell *doorbell);
/* Returns a ticket. Take the ticket, look for work, then sleep with the ticket: if the doorbell
 * rings after doorbell_listen, doorbell_sleep returns immediately. */
unsigned doorbell_listen(struct doorbell *doorbell);
void doorbell_sleep(struct doorbell *doorbell, unsigned ticket, double seconds);

/* Several threads may sleep on one word. A thread sleeps while the word has this value, until
 * another thread calls doorbell_wake_all. A sleep may also end early. */
void doorbell_sleep_while(atomic_uint *word, unsigned value);
void doorbell_wake_all(atomic_uint *word);

/* ---- the window ---- */

/* WINDOW_SLOTS: an allreduce in teams (collectives/window.c) works on 4 rounds at once. With fewer
 * slots the ranks would wait for each other for ever. WINDOW_SLOT: slots of 512 KiB and 1 MiB were
 * not faster with helper threads on 16 cores of an Intel Xeon. WINDOW_FAST_PATH: chosen, not
 * measured; a tensor for which the fast path has no room is negotiated. */
enum { WINDOW_SLOTS = 4, WINDOW_SLOT = 256 * 1024, WINDOW_FAST_PATH = 1 << 20 };

/* A collective has rounds, a round has steps. A flag counts the rounds in which a step is done. */
enum window_flag {
    WINDOW_STAGED,  /* this rank has written its input to its slot, a part of the window */
    WINDOW_REDUCED, /* this rank has summed its chunk and written the sum to all ranks' slots */
    WINDOW_TAKEN,   /* this rank no longer reads or writes other ranks' slots of the window */
    WINDOW_PASSED,  /* this rank has summed its chunk of the data of its team, if there are teams */
    WINDOW_FLAGS
};

struct window_line {
    _Alignas(64) _Atomic uint64_t rounds;
};

enum { WINDOW_CPUS = 1024 }; /* the bits of a cpu_set_t */

struct window_cpus {
    _Alignas(64) atomic_int last; /* 1 + the core that the rank last ran on; 0: unknown */
    _Alignas(64) bool usable[WINDOW_CPUS];
};

struct window_rank {
    struct doorbell doorbell;
    struct window_cpus cpus;
    struct window_line flags[WINDOW_FLAGS];
    _Alignas(4096) unsigned char slots[WINDOW_SLOTS][WINDOW_SLOT];
    _Alignas(4096) unsigned char fast_path[WINDOW_FAST_PATH]; /* engine/fast_room.h */
};

struct window {
    struct window_rank *ranks; /* array of n, which all ranks map */
    int n, self;               /* number of ranks on this host; this rank's local rank */
    uint64_t rounds;           /* rounds completed; equal on all ranks between collectives */
    /* Allreduces of `team_bytes` and more run in teams of `team` consecutive ranks
     * (collectives/window.c). team 0: there are no teams. Equal on all ranks. */
    int team;
    size_t team_bytes;
};

/* The memory must be zero before the first rank calls window_init. */
size_t window_bytes(int n);
void window_init(struct window *w, void *memory, int n, int self);

/* Touches the pages that this rank writes, so that they are on this rank's NUMA node, and later
 * writes do not pay 1.4 us for each first touch. Call it before another rank uses the memory. */
void window_touch(void *memory, int self);

/* Raises this rank's flag to `round`: the rank has done this step of the round. */
void window_raise(struct window *w, enum window_flag flag, uint64_t round);
/* Returns whether the rank has raised the flag to `round` or higher. */
bool window_raised(const struct window *w, int local_rank, enum window_flag flag, uint64_t round);

/* Returns the rank's memory for a round (slot). Rounds k and k + WINDOW_SLOTS share a slot. */
static inline char *window_slot(const struct window *w, int local_rank, uint64_t round) {
    return (char *)w->ranks[local_rank].slots[round % WINDOW_SLOTS];
}

static inline struct window_rank *window_self(struct window *w) { return &w->ranks[w->self]; }

/* ---- cores ----
 *
 * For each rank of the host, the window shows which cores the rank may use and on which core the
 * rank last ran. A rank updates its core only in collectives, so other ranks may read an old value
 * after the rank has moved to another core. Any thread of a rank may call the functions. */

/* Publishes which cores this process may use. Call it once, before any rank asks for its share. */
void cpus_publish(struct window *w);
/* Returns how many cores this rank may use, if ranks that may use the same core share it equally.
 * 0: unknown. */
double cpus_share(const struct window *w);
/* Returns the container's limit of processor time, in cores; WINDOW_CPUS if there is no limit. */
double cpus_quota(void);

/* Publishes the calling thread's present core as this rank's core. */
void cpus_publish_core(struct window *w);
/* Like cpus_publish_core, for a rank that is about to wait. Returns true if another rank of the
 * host last ran on this core: if this thread spun, the other rank could not run. */
bool cpus_crowded(struct window *w);

/* ---- copies of memory that two cores write in turn, cache line by cache line: lines.c ----
 *
 * If a core writes to a line that another core has read, the writing core must wait until the other
 * core drops the line. But a core that reads a line and then writes to it gets the line together
 * with the right to write. So a rank that is the only reader of another rank's data writes to the
 * data after reading: it writes sums, or the same bytes again. Two cores of an AMD EPYC that share
 * only the last-level cache pass on 64 KB in 10 us this way, otherwise in 34 us. */

/* Copies lines. A rank that sees a flag raised after the copy (memory_order_release) also sees the
 * copied data. */
void lines_copy(void *to, const void *from, size_t bytes);
/* Rewrites, with the same bytes, the lines that this rank has just read. */
void lines_take_over(void *lines, size_t bytes);
/* Calls lines_copy, then lines_take_over for the lines that were read. */
void lines_copy_over(void *to, void *from, size_t bytes);

#endif
