/* The coordinator's state.
 *
 * For coordinator.c, which takes messages, and decide.c; no other file includes it. */
#ifndef HVDLITE_NEGOTIATION_COORDINATOR_STATE_H
#define HVDLITE_NEGOTIATION_COORDINATOR_STATE_H

#include "negotiation/ahead.h"
#include "negotiation/cache.h"
#include "negotiation/coordinator.h"
#include "negotiation/ready.h"

struct coordinator {
    struct coordinator_config config;
    struct cache *cache;
    uint64_t last_id;       /* the last id given to a tensor; ids are never used twice */
    struct waiting waiting; /* tensors that some rank has not submitted */
    bool look_again;        /* a rank has left, so all waiting tensors must be checked */
    /* a rank may wait for its last tensor, so deadlocks must be looked for */
    bool look_for_last;
    hvd_error over;     /* why all waiting tensors fail from now on; HVD_OK: they do not fail */
    uint64_t ordered;   /* numbers given to tensors so far */
    struct ready ready; /* tensors that all ranks have submitted, not decided yet */
    struct ahead ahead;
    int *left; /* by rank: 1 for the first rank that left, ...; 0: it has not left */
    int *owed; /* by rank: number of RESENDs that the rank has not answered */
    int nleft, nowed;
    bool *joined; /* by rank */
    int njoined, last_joined;
    bool said_bye;
    char (*reason)[256]; /* by rank: why it left */
};

#endif
