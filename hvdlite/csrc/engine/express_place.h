/* A tensor's place, which express.c and express_hosts.c share.
 *
 * express.c frees it. By its state any thread has it or the stepping one. */
#ifndef HVDLITE_ENGINE_EXPRESS_PLACE_H
#define HVDLITE_ENGINE_EXPRESS_PLACE_H

#include "engine/express.h"

/* The least number of a batch; those of the engine are below. */
#define BATCHES ((uint64_t)1 << 62)

enum state { AWAY, OPEN, BUSY }; /* to use only after a decision; for any thread; a thread has it */

struct express_place {
    struct map_node node;
    struct express_place *next;
    size_t at, room; /* in the window; bytes of an input. 0: there is no room */
    uint64_t generation, round;
    unsigned misses;
    /* AWAY: the rest is the stepping thread's. BUSY: the rest is that of the thread that has it. */
    _Atomic int state;
    /* By hosts, where the stepping thread has all: */
    uint32_t number;       /* the same on all ranks */
    int step;              /* of the round */
    bool sent;             /* this rank's part in the step */
    double due;            /* BUSY: when this rank asks for what it waits for */
    struct tensor *tensor; /* BUSY */
    char *message;         /* a head, and the sums */
    size_t capacity;
    struct request request;
};

/* If a tensor of its request may come to a round. */
bool express_takes(const struct express *x, const struct tensor *tensor);
struct express_place *express_find(struct express *x, const struct map_node *like);
/* NULL: no memory. Places would differ from those of other ranks then, so no more is opened. */
struct express_place *express_add(struct express *x, const struct request *r);
/* Ends a round; its number among all of the tensor, equal on all ranks. */
static inline uint64_t express_batch(struct express_place *p) {
    return BATCHES + (p->generation << 32) + p->round++;
}

/* ---- express_hosts.c ---- */
bool express_suits_hosts(const struct express *x, const struct request *r);
/* A generation begins; often: it has rounds. */
int express_open_hosts(struct express *x, struct express_place *p, bool often, hvd_error *err);
/* The notes of rounds of the place that are over; NULL: all notes. */
void express_drop(struct express *x, const struct express_place *p);

/* ---- a round on a window: one word for all ranks, in which they count themselves ----
 *
 * The word: generation (40 bits) | round (8) | closed (1) | ranks that have come (15). */
enum { UNTIMED = 16 }; /* looks for one look at the clock */

static inline uint64_t word_of(uint64_t generation, uint64_t round) {
    return generation << 24 | (round & 0xff) << 16;
}

/* Counts this rank, the first of all n or not. False: the round is closed. */
bool round_arrive(_Atomic uint64_t *word, uint64_t own, uint64_t n);
/* Closes the round; `arrived`: this rank has come to it. False: it is full. */
bool round_close(_Atomic uint64_t *word, uint64_t own, bool arrived, uint64_t n);
/* True: all n ranks have come. False: the round is closed. */
bool round_wait(_Atomic uint64_t *word, uint64_t own, uint64_t n, struct wait_policy policy);

#endif
