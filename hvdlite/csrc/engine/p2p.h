/* Point-to-point: tensors that one rank sends to another, without the coordinator.
 *
 * The first send of a name to a rank matches the first receive of the name there that names the
 * sender, or any rank. The sender offers its tensor, with the data if the tensor is short. A
 * receiver with a matching receive asks for the rest, a little ahead of what has arrived. So no
 * rank stores long data that it may not want, and the data does not hold up messages of the
 * negotiation. On a host long data passes through shared memory instead: a bounce buffer
 * (p2p_state.h). A send has ended when a receive has matched it and its data is sent. A rank that
 * has left refuses offers, and tells the ranks that wait for it. */
#ifndef HVDLITE_ENGINE_P2P_H
#define HVDLITE_ENGINE_P2P_H

#include "engine/tensors.h"
#include "engine/timeline.h"
#include "shm/flight.h"
#include "transport/transport.h"

enum { P2P_ANY = -1 }; /* root of a receive that takes a tensor from any rank */

struct p2p {
    struct transport *t;
    struct flight *flight;     /* NULL: none */
    int group;                 /* the group's number in the flight recorder */
    struct timeline *timeline; /* NULL: none */
    struct mutex mutex;        /* guards `fresh`, `closed` and `why` */
    struct tensor_list fresh;
    bool closed;
    hvd_error why;
    atomic_size_t count; /* number of tensors submitted and not finished */
    /* Only the stepping thread uses these: */
    /* unmatched sends; unmatched receives; matched receives, whose data is arriving */
    struct tensor_list sends, receives, coming;
    /* offers that no receive has matched; the oldest first */
    struct p2p_offer *offers;
    struct p2p_peer *peers; /* by rank; NULL until the first use */
    uint64_t number;        /* number of the last send */
    bool left;
    char reason[256];
};

void p2p_open(struct p2p *p, struct transport *t, struct flight *flight, int group,
              struct timeline *timeline);
void p2p_free(struct p2p *p); /* after p2p_close */

bool p2p_is(const struct request *r);

/* ---- any thread ---- */
/* Checks a tensor's request; at: this rank. */
int p2p_check(const struct request *r, const hvd_topology *at, hvd_error *err);
/* The tensor has its node by name; see engine_submit. */
int p2p_submit(struct p2p *p, struct tensor *tensor, hvd_error *err);
/* refuses later submissions, with the `why` of the first call */
void p2p_refuse(struct p2p *p, const hvd_error *why);

/* ---- the stepping thread ---- */
/* Offers submitted sends and matches submitted receives. */
int p2p_step(void *p2p, bool *progress, hvd_error *err);
bool p2p_is_message(const struct message *m);
int p2p_take(struct p2p *p, const struct message *m, hvd_error *err);
/* True: a send or receive waits for `rank`. */
bool p2p_awaits(const struct p2p *p, int rank);
/* the oldest that waits; NULL: nothing waits */
const struct tensor *p2p_oldest(const struct p2p *p);
int p2p_leave(struct p2p *p, const char *reason, hvd_error *err);
/* Fails the sends and receives under way, and all later ones. */
void p2p_close(struct p2p *p, const hvd_error *why);

#endif
