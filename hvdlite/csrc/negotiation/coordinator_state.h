/* The state of the coordinator.
 *
 * Only coordinator.c (takes messages) and decide.c include this file. */
#ifndef HVDLITE_NEGOTIATION_COORDINATOR_STATE_H
#define HVDLITE_NEGOTIATION_COORDINATOR_STATE_H

#include "negotiation/ahead.h"
#include "negotiation/cache.h"
#include "negotiation/coordinator.h"
#include "negotiation/ready.h"

struct coordinator {
    struct coordinator_config config;
    struct cache *cache;
    uint64_t last_id;       /* the last id given to a tensor; ids are never reused */
    struct waiting waiting; /* tensors that some rank has not submitted */
    bool look_again;        /* a rank has left, so all waiting tensors must be checked */
    /* a rank may wait for the last tensor that it submits, so look for deadlocks */
    bool look_for_last;
    /* reason why all waiting tensors fail from now on; HVD_OK: they do not fail */
    hvd_error over;
    uint64_t ordered;   /* the next order number of a tensor; the first is 0 */
    struct ready ready; /* tensors that all ranks have submitted and that are not decided yet */
    struct ahead ahead;
    int *left; /* by rank: 1 for the first rank that left, 2 for the second, ...; 0: has not left */
    int *owed; /* by rank: number of RESENDs that the rank has not answered */
    int nleft, nowed;
    bool *joined; /* by rank */
    int njoined, last_joined;
    bool said_bye;
    char (*reason)[256]; /* by rank: reason why the rank left */
};

#endif
