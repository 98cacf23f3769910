/* A link: a connected stream to another rank that carries frames, some at a time in each direction.
 *
 * Nothing here waits. A frame goes out from the sender's memory and comes in straight to where its
 * reader wants it; short frames are read ahead, many by one call. The caller has a lock. */
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
    bool hung;               /* an end of the stream is near */
    bool ended, mute;        /* nothing comes any more; nothing goes any more */
    bool starved;            /* the kernel lacks memory, and tells of no change: try again */
    int error;               /* of this rank's own, for which nothing comes or goes; 0: none */
    int low;                 /* bytes that have to come before the kernel tells; 0: not set yet */
    struct frames out;
    /* The frame that is arriving: */
    struct frame_head head;
    size_t got;            /* bytes, with the head */
    bool begun;            /* its reader has set where it goes */
    char *into;            /* NULL: nowhere */
    struct frame *frame;   /* NULL: `parcel`, or nowhere */
    struct parcel *parcel; /* whose data `into` is */
    /* Bytes read ahead: */
    size_t at, end;
    char ahead[LINK_AHEAD];
};

/* What to do with frames. `begin` sets `into`, of head.bytes, and returns true; false: the link
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
