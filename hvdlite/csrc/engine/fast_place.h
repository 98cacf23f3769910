/* The place of a tensor's name on the fast path. Only fast_*.c include this header.
 *
 * While the place is AWAY, the stepping thread owns all fields except `state`. While the place is
 * BUSY, the thread that has taken the place owns these fields. */
#ifndef HVDLITE_ENGINE_FAST_PLACE_H
#define HVDLITE_ENGINE_FAST_PLACE_H

#include "engine/fast_path.h"

/* AWAY: the tensor can't use the fast path until the coordinator's next decision on it. OPEN: any
 * thread may run the tensor on the fast path. BUSY: a thread does so. */
enum state { AWAY, OPEN, BUSY };

struct window_place {
    size_t at, room;  /* offset in the window; bytes reserved per input, 0: none */
    bool uneven;      /* an alltoall for which a rank has chosen its splits */
    int64_t out_rows; /* if uneven: rows that this rank receives; published with its splits */
};

struct host_place {
    uint32_t number;       /* equal on all ranks */
    int step;              /* the current step of the collective */
    bool sent;             /* this rank has sent its message of this step */
    double due;            /* if BUSY: time to ask the rank whose message is overdue */
    struct tensor *tensor; /* set if BUSY */
    char *message;         /* a header and the sums */
    size_t capacity;
};

struct fast_place {
    struct map_node node;
    struct fast_place *next;
    struct request request;
    uint64_t generation, round;
    unsigned misses; /* number of successive decisions that no completed round followed */
    _Atomic int state;
    struct window_place shared;
    struct host_place hosts;
};

/* Returns whether the fast path may run this tensor. */
bool fast_place_takes(const struct fast_path *x, const struct tensor *tensor);
struct fast_place *fast_place_find(struct fast_path *x, const struct map_node *like);
/* NULL: memory is short. Then add no more names, because ranks would number them differently. */
struct fast_place *fast_place_add(struct fast_path *x, const struct request *r);
void fast_place_free_all(struct fast_path *x);
/* Ends a fast-path collective and returns its batch number, which is equal on all ranks. */
static inline uint64_t fast_place_batch(struct fast_place *p) {
    return HVD_FAST_BATCHES + (p->generation << 32) + p->round++;
}

/* ---- functions of fast_window.c and fast_hosts.c that fast_path.c calls ---- */

bool fast_window_suits(const struct fast_path *x, const struct tensor *tensor);
bool fast_hosts_suits(const struct fast_path *x, const struct request *r);
/* Opens the fast path for a tensor name, after a decision of the coordinator. If `often` is false,
 * leaves it closed, because no round was completed after the last decisions. */
void fast_window_open(struct fast_path *x, struct fast_place *p, const struct tensor *tensor,
                      bool often);
int fast_hosts_open(struct fast_path *x, struct fast_place *p, bool often, hvd_error *err);
/* Frees received messages (notes) of past rounds of one tensor name; p NULL: frees all notes. */
void fast_hosts_drop(struct fast_path *x, const struct fast_place *p);

#endif
