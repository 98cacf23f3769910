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
    FRAME_DATA,    /* of a transfer */
    FRAME_MESSAGE, /* of the negotiation */
    FRAME_OVER,    /* the sender has closed its group, which failed */
    FRAME_FAREWELL /* the sender has ended its job in good order */
};

struct frame_head {
    uint32_t bytes, group, kind;
};

enum { LINK_LONGEST = 1 << 30, LINK_AHEAD = 4096 };

/* A frame to send, or the memory for one to receive. */
struct frame {
    struct frame *next, *all; /* of a queue; of the owner's frames */
    struct frame_head head;
    char *data;
    size_t moved; /* bytes sent, with the head */
    bool complete;
    bool own; /* freed when it is sent */
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
    bool readable, writable; /* as far as is known */
    bool hung;               /* the kernel has reported a hang-up */
    bool ended, mute;        /* nothing more arrives; nothing more is sent */
    bool starved;            /* the kernel lacks memory, and reports no change: try again */
    int error;               /* errno of this rank's own error, which stops the link; 0: none */
    int low;                 /* bytes that must arrive before a poll wakes; 0: not set yet */
    struct frames out;
    /* The frame that is arriving: */
    struct frame_head head;
    size_t got;            /* bytes, with the head */
    bool begun;            /* its reader has set `into` */
    char *into;            /* NULL: nowhere */
    struct frame *frame;   /* NULL: `parcel`, or nowhere */
    struct parcel *parcel; /* whose data `into` is */
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

/* Queues the frame and sends what the socket takes at once. p->complete tells whether that was
 * all. */
void link_send(struct link *l, struct frame *p);
/* Sends what the socket takes of the queued frames. */
void link_push(struct link *l, struct link_owner owner);
/* Reads what there is. */
void link_pull(struct link *l, struct link_owner owner);

/* The link reads the frame's memory no more. A frame whose sending has begun goes on from a copy;
 * without memory for the copy the link sends nothing more. */
void link_forget(struct link *l, struct frame *p);

#endif
