/* What a rank knows of its group's negotiation.
 *
 * follow.h, coordinate.h, silence.h and negotiate.h each work on a part of it, on the engine's
 * thread. */
#ifndef HVDLITE_ENGINE_STATE_H
#define HVDLITE_ENGINE_STATE_H

#include "base/log.h"
#include "engine/express.h"
#include "engine/p2p.h"
#include "engine/run_log.h"
#include "negotiation/cache.h"
#include "negotiation/coordinator.h"
#include "negotiation/gather.h"
#include "negotiation/tree.h"
#include "negotiation/watch.h"
#include "shm/flight.h"
#include "transport/transport.h"

enum { COORDINATOR = 0 };

struct negotiation {
    struct transport *t;
    struct tensors *tensors;
    struct express *express;
    struct p2p *p2p;
    struct cache *cache;             /* of this rank */
    struct coordinator *coordinator; /* on rank 0, else NULL */
    struct wire_writer out, decided; /* messages: up the tree, down the tree */
    double now;                      /* of this step, by clock_now */
    struct run_log run_log;
    struct flight *flight; /* NULL: none */
    int group;             /* its number there */
    bool left;             /* this rank has sent LEAVE */
    struct tensor *joins;  /* a join that waits until this rank's rounds are over; NULL: none */
    struct tree tree;
    struct gather gather;
    struct watch watch;
    double reported; /* when the last send or receive was submitted whose wait was reported */
    const struct log *log;
    hvd_error lost; /* a rank is silent; code 0: none */
    int lost_rank;
    hvd_error abort_cause; /* of another rank's ABORT; code 0: none came */
    bool sent_abort;
    bool bye; /* every rank has left */
};

#endif
