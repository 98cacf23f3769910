/* A channel: the traffic of one group of ranks on the job's streams.
 *
 * Frames between two ranks match receives in order. In a job with one group, a frame without a
 * receive stays in its socket. In a job with several groups such a frame would block the frames of
 * other groups, so the channel reads the frame and keeps it, even for a group that this rank has
 * not opened yet. Callers hold the net's lock. A peer is a rank of the job. */
#ifndef HVDLITE_TRANSPORT_CHANNEL_H
#define HVDLITE_TRANSPORT_CHANNEL_H

#include "transport/net.h"

enum { NOBODY = -1 };

enum channel_state { CHANNEL_EARLY, CHANNEL_OPEN, CHANNEL_CLOSED };

/* Functions of the channel's owner. The channel also calls them from other threads. */
struct channel_owner {
    void (*ring)(void *arg); /* called after each frame sent or received, and after a failure */
    void (*lost)(void *arg, int peer);
    void *arg;
};

struct channel {
    struct channel *next;
    struct net *net;
    uint32_t group;
    enum channel_state state;
    struct channel_owner owner;
    struct frames *posted; /* array by peer */
    struct frames *kept;   /* array by peer: complete frames that no receive waits for yet */
    struct frames inbox;
    /* frames: all frames of this channel, which frees them; free: those frames that are unused */
    struct frame *frames, *free;
    int over; /* 1 + the first peer that has reported a failure of this group; 0: none */
    double over_since;
    int cut; /* 1 + the peer that sent more or fewer bytes than expected; 0: none */
    size_t cut_bytes, cut_expected; /* the sizes of this frame and of its receive */
};

/* Delivers the frames of all groups to their channels. */
extern const struct net_reader CHANNELS;

/* The caller owns the channel until channel_close. */
int channel_open(struct channel **out, struct net *n, uint32_t group, struct channel_owner owner,
                 hvd_error *err);
void channel_close(struct channel *c);

/* Begin a transfer. *p is NULL if the transfer is complete already. */
int channel_isend(struct channel *c, const void *data, size_t bytes, int to, struct frame **p,
                  hvd_error *err);
int channel_irecv(struct channel *c, void *data, size_t bytes, int from, struct frame **p,
                  hvd_error *err);
void channel_done(struct channel *c, struct frame *p); /* call it when the transfer is complete */
/* After this call no transfer reads or writes the caller's memory. */
void channel_abandon(struct channel *c);

/* Sends a message; copies the data. */
int channel_send(struct channel *c, int to, const void *data, size_t size, hvd_error *err);
/* Tells the peers that this rank has closed the group after a failure, or can't open the group, so
 * that they do not wait for this rank. Takes the net's lock itself. */
void channel_over(struct net *n, uint32_t group, const int *peers, int size);
/* Returns the next message from the peer `from`, or from any peer (NOBODY). NULL: no message. */
struct frame *channel_take(struct channel *c, int from);
/* Fails in these cases: a frame and its receive had different sizes; memory for a frame was short;
 * this rank can't use a stream; the peer `from` (NOBODY: no peer) has left the job; a rank closed
 * the group after a failure, `patience` seconds ago. First take the messages that have arrived. */
int channel_check(const struct channel *c, int from, double patience, hvd_error *err);
/* Sets the error of a frame of `bytes` bytes, whose receive expected another size. */
int channel_cut(const struct net *n, int peer, size_t bytes, size_t expected, hvd_error *err);

#endif
