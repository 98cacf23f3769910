/* The memory of a place, one tensor name of the fast path, in the window.
 *
 * In each rank's memory a place has a head, then room for two inputs. The head has a cache line for
 * the word of fast_round.h (only local rank 0's word is used), and a cache line for the number of
 * the last round whose sums this rank has written. In an alltoall with splits, each rank's splits
 * are at the end of the room for the rank's first input. Only the thread that has taken the place
 * calls the functions. */
#ifndef HVDLITE_ENGINE_FAST_ROOM_H
#define HVDLITE_ENGINE_FAST_ROOM_H

#include "engine/fast_place.h"
#include "shm/window.h"

#include <stdatomic.h>

enum { LINE = 64, HEAD = 2 * LINE };

static inline char *room_of(const struct fast_path *x, int local_rank, const struct fast_place *p) {
    return (char *)x->shared.window->ranks[local_rank].fast_path + p->shared.at;
}

static inline _Atomic uint64_t *word_at(const struct fast_path *x, const struct fast_place *p) {
    return (_Atomic uint64_t *)(void *)room_of(x, 0, p);
}

static inline _Atomic uint64_t *sums_of(const struct fast_path *x, int local_rank,
                                        const struct fast_place *p) {
    return (_Atomic uint64_t *)(void *)(room_of(x, local_rank, p) + LINE);
}

static inline char *input_of(const struct fast_path *x, int local_rank,
                             const struct fast_place *p) {
    return room_of(x, local_rank, p) + HEAD + p->round % 2 * p->shared.room;
}

static inline size_t lines_of(size_t bytes) { return bytes / LINE * LINE + LINE; }

static inline size_t splits_bytes(const struct fast_path *x) {
    return (size_t)x->shared.window->n * sizeof(int64_t);
}

static inline int64_t *splits_of(const struct fast_path *x, int local_rank,
                                 const struct fast_place *p) {
    char *inputs = room_of(x, local_rank, p) + HEAD;
    return (int64_t *)(void *)(inputs + p->shared.room - lines_of(splits_bytes(x)));
}

/* Copies the tensor's input to the window, except the part that only this rank reads. */
void fast_room_stage(const struct fast_path *x, const struct fast_place *p, const struct tensor *t);

/* Writes the result to the tensor's output. Call it when all ranks have copied their inputs to the
 * window. Returns false if the engine has failed: another rank's sums may then never arrive. */
bool fast_room_reduce(struct fast_path *x, const struct fast_place *p, const struct tensor *t,
                      uint64_t own);

#endif
