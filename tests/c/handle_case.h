/* A rank with handles, for tests. */
#ifndef HVDLITE_HANDLE_CASE_H
#define HVDLITE_HANDLE_CASE_H

#include "engine_case.h"
#include "requests.h"

#include "job/handle.h"

static inline struct hvd_handle *new_handle(void) {
    struct hvd_handle *h = handle_new(ERR);
    REQUIRE(h != NULL);
    return h;
}

#define DROPPED OWN(drop_handle)
static inline void drop_handle(struct hvd_handle **h) { hvd_drop(*h); }

static inline void submit(struct engine_rank *me, struct hvd_handle *h) {
    handle_lend(h);
    REQUIRE(engine_submit(me->engine, &h->tensor, ERR) == HVD_OK);
}

static inline void check_finished(struct hvd_handle *h, double seconds, int code) {
    CHECK(handle_finish(h, seconds, ERR));
    FAILS(ERR->code, code);
}

static inline bool is_done(void *handle) {
    return atomic_load(&((struct hvd_handle *)handle)->done);
}

static inline void drive(struct engine_rank *me, struct hvd_handle *h, atomic_int *driven) {
    engine_drive(me->engine, is_done, h);
    if (is_done(h)) atomic_fetch_add(driven, 1);
}

enum { TRIES = 100 };

/* Returns whether the last tensors of all ranks took the fast path. If other processes use the
 * cores, a rank may be late, and another rank then submits to the engine instead. All ranks must
 * call this function. */
static inline bool all_went_fast(struct engine_rank *me) {
    static atomic_int n;
    ranks_meet(me->ranks);
    if (!me->rank) atomic_store(&n, 0);
    ranks_meet(me->ranks);
    atomic_fetch_add(&n, !strcmp(engine_algorithm(me->engine), "fast path"));
    ranks_meet(me->ranks);
    return atomic_load(&n) == me->ranks->size;
}

/* Makes all ranks spin in waits, so that callers step the engine themselves. */
static inline void spin(struct ranks *ranks, int rank) {
    rank_transport(ranks, rank)->patience.policy = (struct wait_policy){30e-6, 300e-6, NULL};
}

#endif
