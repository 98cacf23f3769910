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

enum stream { STREAM_DATA, STREAM_MESSAGES, STREAMS };

struct channel;
struct net;

/* The reader of all groups' frames (channel.c): `begin`, `arrived` and `sent` as in link_owner;
 * `lost`: the peer is dead; `changed`: the peer has left, or the net is starved or has an error;
 * `closed`: no frame will come. When one group looks at the streams, the reader is also called
 * for frames of other groups. */
struct net_reader {
    bool (*begin)(struct net *n, int peer, struct link *l);
    void (*arrived)(struct net *n, int peer, struct link *l);
    void (*sent)(struct net *n, const struct frame *p);
    void (*lost)(struct net *n, int peer);
    void (*changed)(struct net *n);
    void (*closed)(struct net *n);
};

struct peer {
    struct link links[STREAMS];
    bool left;      /* the peer's farewell has come */
    bool given_up;  /* the peer is dead or lost, or an engine has declared it silent */
    enum fate fate; /* then */
    /* the peer's job has failed by a rank's death, of which this rank will learn, too */
    bool failed;
    double ended[STREAMS]; /* when each stream ended; 0: not yet */
};

/* Seconds for which a rank that ends by a failure of its job or group is not blamed: the rank that
 * caused the failure is to be blamed first. */
static const double CAUSE_COMES_FIRST = 1;

struct net {
    struct mutex lock; /* guards everything */
    int rank, size;
    bool starved;       /* there was no memory for a frame, so its stream is stuck */
    int error, with;    /* errno of this rank's own error on a link, and the link's peer; 0: none */
    struct peer *peers; /* by rank */
    int epoll;
    double looked; /* time of the last net_look_seldom that looked */
    const struct net_reader *reader;
    struct channel *channels; /* for the reader: all channels that ever had a frame here */
    int nopen;                /* number of open channels */
};

/* Connected sockets: [size], -1 at `rank`. The net owns them from now on, also if it fails. */
int net_open(struct net **out, const struct net_reader *reader, int rank, int size, const int *data,
             const int *messages, hvd_error *err);
void net_close_files(int rank, int size, const int *files);
/* clean: sends a farewell; otherwise the other ranks consider this rank dead. All channels must
 * be closed. */
void net_close(struct net *n, bool clean);
/* In a forked child: closes its copies of the sockets, so that they end with the parent. */
void net_let_go(const struct net *n);

static inline void net_lock(struct net *n) { mutex_lock(&n->lock); }
static inline void net_unlock(struct net *n) { mutex_unlock(&n->lock); }

/* Sends and receives what the sockets allow without a wait, and delivers the frames. */
void net_look(struct net *n);
/* net_look, but only now and then: for a busy engine, which receives its messages by mailboxes.
 * It must still see the end of a stream, because all other ranks may have ended. */
void net_look_seldom(struct net *n);
void net_pull(struct net *n, int peer, enum stream stream);
void net_send(struct net *n, int peer, enum stream stream, struct frame *p); /* see link_send */
/* True: a link must be tried again although its socket reports no event. */
bool net_tries_again(const struct net *n);
/* The peer is dead or lost: nothing arrives after the bytes that the streams hold. */
void net_bury(struct net *n, int peer, enum fate fate);
/* True: the peer lives, but its transfers can't complete any more. */
bool net_is_cut(const struct net *n, int peer);
bool net_sends(const struct net *n); /* true: a frame still waits for room in a socket */

#endif
