/* The net: this rank's streams to all other ranks of the job, shared by all groups.
 *
 * Each pair of ranks has two streams, one for data and one for messages, so that neither waits
 * behind the other. The thread that reads the streams delivers the frames of all groups
 * (channel.h). Ranks are ranks of the job. The end of a data stream means nothing. If a message
 * stream ends without a farewell message, the rank has died. Callers hold the lock, except callers
 * of net_open, net_close and net_lock. */
#ifndef HVDLITE_TRANSPORT_NET_H
#define HVDLITE_TRANSPORT_NET_H

#include "base/error.h"
#include "base/os.h"
#include "shm/life.h"
#include "transport/link.h"

enum stream { STREAM_DATA, STREAM_MESSAGES, STREAMS };

struct channel;
struct net;

/* The functions that handle the frames of all groups (channel.c). `begin`, `arrived`, `sent`: as in
 * struct link_owner. `lost`: the peer is dead. `changed`: the peer has left, memory is short, or a
 * link has an error. `closed`: no more frames arrive. A thread that reads the streams for one group
 * also calls these functions for frames of other groups. */
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
    bool left;      /* the peer's farewell has arrived */
    bool given_up;  /* the peer is dead, lost, or declared silent by an engine */
    enum fate fate; /* the reason, if given_up */
    /* the peer's job failed because a rank died; this rank will detect the same death */
    bool failed;
    double ended[STREAMS]; /* time when each stream ended; 0: still open */
};

/* Seconds; chosen, not measured. If a rank ends because its job or group failed, other ranks do not
 * blame this rank so soon, because they must first detect the rank that caused the failure. */
static const double CAUSE_COMES_FIRST = 1;

struct net {
    struct mutex lock; /* guards all fields */
    int rank, size;
    bool starved; /* memory for a frame was short, so the frame's stream does not move any more */
    /* errno of an error on this rank's side of a link, and that link's peer; 0: none */
    int error, with;
    struct peer *peers; /* array by rank */
    int epoll;
    double looked; /* time of the last net_look_seldom that called net_look */
    const struct net_reader *reader;
    struct channel *channels; /* used by the reader: the channels of all groups */
    int nopen;                /* number of open channels */
};

/* Gets arrays of `size` connected sockets, with -1 at index `rank`. The net uses duplicates of the
 * sockets, so the caller may close the sockets after the call. */
int net_open(struct net **out, const struct net_reader *reader, int rank, int size, const int *data,
             const int *messages, hvd_error *err);
/* clean: sends a farewell; without it the other ranks consider this rank dead. All channels must be
 * closed. */
void net_close(struct net *n, bool clean);
/* In a forked child: closes the child's copies of the sockets, so that the other ranks see the
 * streams end when the parent ends. */
void net_close_in_child(const struct net *n);

static inline void net_lock(struct net *n) { mutex_lock(&n->lock); }
static inline void net_unlock(struct net *n) { mutex_unlock(&n->lock); }

/* Sends and receives without blocking, and delivers the frames that have arrived. */
void net_look(struct net *n);
/* Calls net_look from time to time, for a busy engine that gets its messages from mailboxes. If all
 * other ranks end, the engine learns this only from the ends of their streams. */
void net_look_seldom(struct net *n);
void net_pull(struct net *n, int peer, enum stream stream);
void net_send(struct net *n, int peer, enum stream stream, struct frame *p); /* see link_send */
/* Returns true if a link must be tried again although its socket reports no event. */
bool net_tries_again(const struct net *n);
/* Records that the peer is dead or lost. Bytes that its streams still hold can arrive, but nothing
 * after them. */
void net_bury(struct net *n, int peer, enum fate fate);
/* Returns true if the peer lives, but its transfers can no longer complete. */
bool net_is_cut(const struct net *n, int peer);
bool net_sends(const struct net *n); /* true: a frame still waits for room in a socket */

#endif
