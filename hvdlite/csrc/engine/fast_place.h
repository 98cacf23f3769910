/* The place of a tensor's name on the fast path; only fast_*.c include this header.
 *
 * While the place is AWAY the stepping thread owns all of it but `state`; while it is BUSY, the
 * thread that has taken it. */
#ifndef HVDLITE_ENGINE_FAST_PLACE_H
#define HVDLITE_ENGINE_FAST_PLACE_H

#include "engine/fast_path.h"

/* The least batch number of a round; the engine's are smaller. */
#define BATCHES ((uint64_t)1 << 62)

/* AWAY: no round until the next decision. OPEN: any thread may take the place. BUSY: one thread has
 * it. */
enum state { AWAY, OPEN, BUSY };

struct window_place {
    size_t at, room; /* offset in the window; bytes reserved per input, 0 if none */
};

struct host_place {
    uint32_t number;       /* the same on all ranks */
    int step;              /* the step that the round has reached */
    bool sent;             /* this rank has sent its message of the step */
    double due;            /* if BUSY: when to ask the rank whose message is overdue */
    struct tensor *tensor; /* BUSY */
    char *message;         /* a head, and the sums */
    size_t capacity;
};

struct fast_place {
    struct map_node node;
    struct fast_place *next;
    struct request request;
    uint64_t generation, round;
    unsigned misses; /* generations in a row without a round */
    _Atomic int state;
    struct window_place shared;
    struct host_place hosts;
};

/* Whether a tensor with this request may come to a round. */
bool fast_place_takes(const struct fast_path *x, const struct tensor *tensor);
struct fast_place *fast_place_find(struct fast_path *x, const struct map_node *like);
/* NULL: no memory. Then open no more places, because their numbers would differ between ranks. */
struct fast_place *fast_place_add(struct fast_path *x, const struct request *r);
void fast_place_free_all(struct fast_path *x);
/* Ends a round; returns its batch number, equal on all ranks. */
static inline uint64_t fast_place_batch(struct fast_place *p) {
    return BATCHES + (p->generation << 32) + p->round++;
}

/* ---- what fast_path.c calls in fast_window.c and fast_hosts.c ---- */

bool fast_window_suits(const struct fast_path *x, const struct tensor *tensor);
bool fast_hosts_suits(const struct fast_path *x, const struct request *r);
/* Begins a generation. often: it has rounds. */
void fast_window_open(struct fast_path *x, struct fast_place *p, const struct tensor *tensor,
                      bool often);
int fast_hosts_open(struct fast_path *x, struct fast_place *p, bool often, hvd_error *err);
/* Frees the notes of the place's rounds that are over; p NULL: all notes. */
void fast_hosts_drop(struct fast_path *x, const struct fast_place *p);

#endif
