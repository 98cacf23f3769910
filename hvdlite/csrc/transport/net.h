/* The net: this rank's streams to all other ranks of the job, shared by its groups.
 *
 * Two streams a pair, one for data and one for messages, so that neither waits behind the other.
 * Whoever looks at the streams delivers for all groups (channel.h). Ranks are
 * those of the job. The end of a data stream means nothing; that of a message stream without a
 * farewell is a death. Every function but open, close and those of the lock is called with it. */
#ifndef HVDLITE_TRANSPORT_NET_H
#define HVDLITE_TRANSPORT_NET_H

#include "base/error.h"
#include "base/sync.h"
#include "shm/life.h"
#include "transport/link.h"

enum lane { LANE_DATA, LANE_MESSAGES, LANES };

struct channel;
struct net;

/* What takes the frames of all groups: `begin`, `arrived` and `sent` as in link_owner; `lost`: the
 * peer is dead; `changed`: it has left, or the net is starved or has an error; `closed`: no frame
 * will come. channel.c has the one in use. Any group's look calls them, for whichever group
 * waits. */
struct net_reader {
    bool (*begin)(struct net *n, int peer, struct link *l);
    void (*arrived)(struct net *n, int peer, struct link *l);
    void (*sent)(struct net *n, const struct frame *p);
    void (*lost)(struct net *n, int peer);
    void (*changed)(struct net *n);
    void (*closed)(struct net *n);
};

struct peer {
    struct link links[LANES];
    bool left;      /* its farewell has come */
    bool gone;      /* it is dead or lost, or an engine has given it up */
    enum fate fate; /* then */
    bool failed; /* its job has failed there: for another's end, of which this rank learns, too */
    double ended[LANES]; /* when each stream has; 0: it has not */
};

/* Seconds. Who ends because its job or group has failed must not be blamed before the rank that has
 * caused it. */
static const double CAUSE_COMES_FIRST = 1;

struct net {
    struct mutex lock; /* guards everything */
    int rank, size;
    bool starved;       /* there was no memory for a frame: no other one of its stream can come */
    int error, with;    /* of a link of this rank's own, and the peer; 0: none */
    struct peer *peers; /* [rank] */
    int epoll;
    double looked; /* when somebody last looked seldom */
    const struct net_reader *reader;
    struct channel *channels; /* the reader's: each that has ever had a frame here */
    int nopen;                /* those of them that are open */
};

/* Connected sockets: [size], -1 at `rank`. The net owns them from now on, also if it fails. */
int net_open(struct net **out, const struct net_reader *reader, int rank, int size, const int *data,
             const int *messages, hvd_error *err);
void net_close_files(int rank, int size, const int *files);
/* clean: sends a farewell; else the others take this rank for dead. All channels are closed. */
void net_close(struct net *n, bool clean);
/* In a forked child: closes its copies of the sockets, so that they end with the parent. */
void net_let_go(const struct net *n);

static inline void net_lock(struct net *n) { mutex_lock(&n->lock); }
static inline void net_unlock(struct net *n) { mutex_unlock(&n->lock); }

/* Moves what can be moved, and delivers it. */
void net_look(struct net *n);
/* The same, but not often: for an engine that is busy, so that it does not sleep, and whose
 * messages come otherwise. All others may have ended, so that nobody else sees that a stream has
 * ended. */
void net_look_seldom(struct net *n);
void net_pull(struct net *n, int peer, enum lane lane);
void net_send(struct net *n, int peer, enum lane lane, struct frame *p); /* as link_send */
/* Some link must be looked at though its socket tells nothing. */
bool net_tries_again(const struct net *n);
/* The peer is gone: nothing comes after what the streams hold. */
void net_bury(struct net *n, int peer, enum fate fate);
/* No transfer of this peer will ever come or go, though the rank lives. */
bool net_is_cut(const struct net *n, int peer);
bool net_sends(const struct net *n); /* something still waits for room in a socket */

#endif
