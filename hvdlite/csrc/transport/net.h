/* The net: this rank's streams to all other ranks of the job, shared by its groups.
 *
 * Each pair of ranks has two streams, one for data and one for messages, so that neither waits
 * behind the other. A thread that looks at the streams delivers frames for all groups (channel.h).
 * Ranks are those of the job. The end of a data stream means nothing; the end of a message stream
 * without a farewell is a death. Except for open, close and lock, the caller must hold the lock. */
#ifndef HVDLITE_TRANSPORT_NET_H
#define HVDLITE_TRANSPORT_NET_H

#include "base/error.h"
#include "base/sync.h"
#include "shm/life.h"
#include "transport/link.h"

enum lane { LANE_DATA, LANE_MESSAGES, LANES };

struct channel;
struct net;

/* The reader of all groups' frames (channel.c): `begin`, `arrived` and `sent` as in link_owner;
 * `lost`: the peer is dead; `changed`: the peer has left, or the net is starved or has an error;
 * `closed`: no frame will come. A look by one group also makes the calls for frames of other
 * groups. */
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
    bool left;           /* its farewell has come */
    bool gone;           /* the peer is dead or lost, or an engine has given it up */
    enum fate fate;      /* then */
    bool failed;         /* the peer's job has failed, by a death that this rank learns of, too */
    double ended[LANES]; /* when each stream ended; 0: it has not */
};

/* Seconds for which a rank that ends by a failure of its job or group is not blamed: the rank that
 * caused the failure is to be blamed first. */
static const double CAUSE_COMES_FIRST = 1;

struct net {
    struct mutex lock; /* guards everything */
    int rank, size;
    bool starved;       /* no memory for a frame: its stream is stuck */
    int error, with;    /* errno of a link's error of this rank's own, and the peer; 0: none */
    struct peer *peers; /* [rank] */
    int epoll;
    double looked; /* the last net_look_seldom that looked */
    const struct net_reader *reader;
    struct channel *channels; /* the reader's: all that ever had a frame here */
    int nopen;                /* those of them that are open */
};

/* Connected sockets: [size], -1 at `rank`. The net owns them from now on, also if it fails. */
int net_open(struct net **out, const struct net_reader *reader, int rank, int size, const int *data,
             const int *messages, hvd_error *err);
void net_close_files(int rank, int size, const int *files);
/* clean: sends a farewell; else the others think this rank dead. All channels are closed. */
void net_close(struct net *n, bool clean);
/* In a forked child: closes its copies of the sockets, so that they end with the parent. */
void net_let_go(const struct net *n);

static inline void net_lock(struct net *n) { mutex_lock(&n->lock); }
static inline void net_unlock(struct net *n) { mutex_unlock(&n->lock); }

/* Moves what can be moved, and delivers it. */
void net_look(struct net *n);
/* The same, at most now and then: for an engine that is too busy to sleep and receives its messages
 * by mailboxes. It must still see the end of a stream: all other ranks may have ended. */
void net_look_seldom(struct net *n);
void net_pull(struct net *n, int peer, enum lane lane);
void net_send(struct net *n, int peer, enum lane lane, struct frame *p); /* as link_send */
/* A link needs another look although its socket reports no event. */
bool net_tries_again(const struct net *n);
/* The peer is dead or lost: nothing arrives after the bytes that the streams hold. */
void net_bury(struct net *n, int peer, enum fate fate);
/* The peer lives, but its transfers can't complete any more. */
bool net_is_cut(const struct net *n, int peer);
bool net_sends(const struct net *n); /* something still waits for room in a socket */

#endif
