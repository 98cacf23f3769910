/* Point-to-point: tensors that one rank sends to another, without the coordinator.
 *
 * A send matches the receiving rank's oldest receive of the same name, provided that the receive
 * names the sender or any rank. The sender sends an offer, with the data if the tensor is short.
 * When a receive matches the offer, the receiver asks for long data in steps, a little ahead of the
 * data that has arrived. So no rank stores long data that it may never want, and long data does not
 * delay negotiation messages. A send ends when a receive has matched the send and all data has been
 * sent. A rank that has left refuses offers, and has told the ranks that may wait for its sends.
 *
 * A send or receive fails if nothing matches it within the limit for stalls. If its counterpart
 * comes later, the counterpart fails, too; otherwise the counterpart would match the next receive
 * or send. If a rank has skipped a send, its next send of this name is taken for the counterpart.
 * One exception: a receive of short data, which is in the offer, may complete before the receiver
 * learns that the send has failed.
 *
 * On one host data of P2P_LOAN bytes or more is copied once: the offer lends the sender's memory
 * (shm/near.h), and the receiver reads this memory in steps. Then the receiver asks the sender
 * whether the send is still under way. Only the sender's answer ends the receive, because a send
 * that has failed meanwhile no longer owns its memory. Shorter data, and data in memory that can't
 * be read, goes through a bounce buffer in shared memory (shm/near.h). */
#ifndef HVDLITE_ENGINE_P2P_H
#define HVDLITE_ENGINE_P2P_H

#include "engine/tensors.h"
#include "engine/timeline.h"
#include "shm/flight.h"
#include "transport/transport.h"

/* Minimum bytes of a tensor that the receiver reads in the sender's memory. With 256 KiB, JAX's
 * ppermute on 4 ranks and 2 busy cores took 0.9 to 1.3 times as long as by the bounce buffer. */
enum { P2P_LOAN = 512 << 10 };
enum { P2P_ANY = -1 }; /* root of a receive that accepts any rank's tensor */

struct p2p {
    struct transport *t;
    struct flight *flight;     /* NULL: no recorder */
    int group;                 /* number of the group in the flight recorder */
    struct timeline *timeline; /* NULL: no timeline */
    struct mutex mutex;        /* guards `fresh`, `closed` and `why` */
    struct tensor_list fresh;
    bool closed;
    hvd_error why;
    atomic_size_t count; /* number of tensors that are submitted and not finished */
    /* Only the stepping thread uses the following fields. */
    /* Four lists: unmatched sends; unmatched receives; matched receives whose data this rank reads
     * from the sender's memory; matched receives that wait for data, or that have read all data and
     * wait for the sender's answer. */
    struct tensor_list sends, receives, reading, arriving;
    /* offers that no receive has matched, the oldest first */
    struct p2p_offer *offers;
    /* Receives of this rank, and sends to this rank, that have waited too long and failed. Each
     * expired receive refuses the next offer that fits it, because this offer must not match a
     * later receive. Each withdrawn send fails the next receive that fits it. */
    struct p2p_failed *expired, *withdrawn;
    bool withdrew; /* true: a send of this rank has waited too long, so its offer is withdrawn */
    struct p2p_peer *peers; /* by rank; NULL until the first use */
    uint64_t number;        /* number of this rank's last send */
    uint64_t cookie;        /* the cookie of this rank's loans (shm/near.h) */
    bool left;
    char reason[256];
};

void p2p_open(struct p2p *p, struct transport *t, struct flight *flight, int group,
              struct timeline *timeline);
void p2p_free(struct p2p *p); /* call it after p2p_close */

bool p2p_is(const struct request *r);

/* ---- any thread ---- */
/* Checks the request of a send or receive. at: this rank, and the number of ranks. */
int p2p_check(const struct request *r, const hvd_topology *at, hvd_error *err);
/* Submits a send or receive; see engine_submit. */
int p2p_submit(struct p2p *p, struct tensor *tensor, hvd_error *err);
/* Makes later submissions fail with `why`; if called again, with the first `why`. */
void p2p_refuse(struct p2p *p, const hvd_error *why);

/* ---- the stepping thread ---- */
/* Offers submitted sends and matches submitted receives. */
int p2p_step(void *p2p, bool *progress, hvd_error *err);
/* Returns whether the next step reads a sender's memory. */
static inline bool p2p_reads(const struct p2p *p) { return p->reading.oldest; }
bool p2p_is_message(const struct message *m);
int p2p_take(struct p2p *p, const struct message *m, hvd_error *err);
/* Returns whether a send or a receive waits for `rank`. */
bool p2p_awaits(const struct p2p *p, int rank);
/* Returns the send or receive that waits longest; NULL: none waits. */
const struct tensor *p2p_oldest(const struct p2p *p);
/* Fails each unmatched send and receive that its caller has given up, or that has waited for more
 * than `limit` seconds (0: no limit), unless it waits for a silent rank. `silent`: by rank. */
int p2p_expire(struct p2p *p, double now, double limit, const bool *silent, hvd_error *err);
int p2p_leave(struct p2p *p, const char *reason, hvd_error *err);
/* Fails all sends and receives that are in progress or come later. */
void p2p_close(struct p2p *p, const hvd_error *why);

#endif
