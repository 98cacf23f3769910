/* A link: a connected stream that carries frames to and from another rank.
 *
 * No function waits. A frame is sent from the sender's memory and received into the receiver's
 * memory without a copy between; many short frames are read by one call. The caller holds a
 * lock. */
#ifndef HVDLITE_TRANSPORT_LINK_H
#define HVDLITE_TRANSPORT_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_kind {
    FRAME_DATA,    /* data of a transfer */
    FRAME_MESSAGE, /* a message of the negotiation */
    FRAME_OVER,    /* the sender has closed its group, which failed */
    FRAME_FAREWELL /* the sender has ended its job in good order */
};

struct frame_head {
    uint32_t bytes, group, kind;
};

enum { LINK_LONGEST = 1 << 30, LINK_AHEAD = 4096 };

/* A frame to send, or the memory for one to receive. */
struct frame {
    struct frame *next, *all; /* the next frame of a queue; of the list of all the owner's frames */
    struct frame_head head;
    char *data;
    size_t moved; /* bytes sent so far, the head's included */
    bool complete;
    bool own; /* the link frees the frame when it is sent */
};

struct frames {
    struct frame *first, **last;
};

/* A frame that has arrived before a receive was posted. */
struct parcel {
    struct parcel *next;
    int from;
    size_t size;
    char *data; /* malloc'ed */
};

struct parcels {
    struct parcel *first, **last;
};

struct link {
    int file;                /* -1: none */
    bool readable, writable; /* false: a call had to wait; an event of the socket sets it again */
    bool hung;               /* the kernel has reported a hang-up */
    bool ended, mute;        /* ended: nothing more arrives; mute: nothing more is sent */
    bool starved;            /* the kernel lacks memory, and reports no change: try again */
    int error;               /* errno of this rank's own error, which stops the link; 0: none */
    int low;                 /* bytes that must arrive before a poll wakes; 0: not set yet */
    struct frames out;
    /* The frame that is arriving: */
    struct frame_head head;
    size_t got;            /* bytes arrived so far, the head's included */
    bool begun;            /* the reader has set `into` */
    char *into;            /* where the frame's data goes; NULL: the data is dropped */
    struct frame *frame;   /* the receive whose memory `into` is; NULL: none */
    struct parcel *parcel; /* the parcel whose data `into` is; NULL: none */
    /* Bytes read ahead: */
    size_t at, end;
    char ahead[LINK_AHEAD];
};

/* The owner's calls. `begin` sets l->into to memory of head.bytes and returns true; false: the link
 * stands still until the next pull. `sent`: the frame is complete; the link does not own it. */
struct link_owner {
    bool (*begin)(void *arg, struct link *l);
    void (*arrived)(void *arg, struct link *l);
    void (*sent)(void *arg, const struct frame *p);
    void *arg;
};

void frames_add(struct frames *q, struct frame *p);
struct frame *frames_take(struct frames *q);
void frames_remove(struct frames *q, struct frame *p);

void parcels_add(struct parcels *q, struct parcel *p);
struct parcel *parcels_take(struct parcels *q, int from); /* the oldest; from -1: of any rank */
void parcels_drain(struct parcels *q);
struct parcel *parcel_new(int from, size_t size); /* NULL: no memory */
void parcel_free(struct parcel *p);

/* The link owns the connected socket. */
void link_open(struct link *l, int file);
void link_close(struct link *l);

/* Queues the frame and sends what the socket takes at once; p->complete if that was the whole
 * frame. */
void link_send(struct link *l, struct frame *p);
/* Sends what the socket takes of the queued frames. */
void link_push(struct link *l, struct link_owner owner);
/* Reads what has arrived. */
void link_pull(struct link *l, struct link_owner owner);

/* From now on the link does not read the frame's memory. If it has sent a part of the frame, it
 * sends the rest from a copy; without memory for the copy it sends nothing more. */
void link_forget(struct link *l, struct frame *p);

#endif
