/* A link: a connected stream that carries frames to and from another rank.
 *
 * No function blocks. Frames go from the sender's memory to the receiver's memory without a copy in
 * between; one read call can get many short frames. The caller holds a lock. */
#ifndef HVDLITE_TRANSPORT_LINK_H
#define HVDLITE_TRANSPORT_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum frame_kind {
    FRAME_DATA,    /* data of a transfer */
    FRAME_MESSAGE, /* a negotiation message */
    FRAME_OVER,    /* the sender has closed its group because the group failed */
    FRAME_FAREWELL /* the sender has ended its job without a failure */
};

struct frame_head {
    uint32_t bytes, group, kind;
};

/* LINK_LONGEST: bytes of the longest frame. Senders refuse longer frames, so a larger length is
 * damage. LINK_AHEAD: bytes of a buffer for short frames, read together; chosen, not measured. */
enum { LINK_LONGEST = 1 << 30, LINK_AHEAD = 4096 };

/* A frame to send, the memory for a frame to receive, or a frame that arrived before its receive
 * was posted. */
struct frame {
    struct frame *next, *all; /* `next` links a queue; `all` links all frames of the owner */
    struct frame_head head;
    int from; /* sender of a frame that has arrived */
    char *data;
    size_t moved; /* bytes sent so far, including the head */
    bool complete;
    bool own; /* true: the link frees the frame after sending it */
};

struct frames {
    struct frame *first, **last;
};

struct link {
    int file; /* -1: none */
    /* false: the last call would have blocked; an event of the socket sets it to true */
    bool readable, writable;
    bool hung;        /* the kernel has reported a hang-up */
    bool ended, mute; /* ended: nothing more arrives; mute: nothing more can be sent */
    /* the kernel was short of memory; no event reports when memory is free, so try again */
    bool starved;
    int error; /* errno of an error on this rank that stopped the link; 0: none */
    /* bytes that must arrive before a poll wakes this rank; 0: not set yet */
    int low;
    struct frames out;
    /* The frame that is arriving: */
    struct frame_head head;
    size_t arrived;      /* bytes that have arrived, including the head */
    bool begun;          /* true: the reader has set `into` */
    char *into;          /* destination of the frame's data; NULL: the data is dropped */
    struct frame *frame; /* the receive that `into` belongs to; NULL: none */
    struct frame *early; /* the frame without a posted receive that `into` belongs to; NULL: none */
    /* The buffer of bytes that were read ahead; bytes from `at` to `end` are not used yet: */
    size_t at, end;
    char ahead[LINK_AHEAD];
};

/* The owner's functions. `begin` sets l->into to memory for the frame's data (NULL drops the data)
 * and returns true; if `begin` returns false, the link stops reading until the next link_pull. The
 * link calls `sent` after it has sent a frame of the owner (own false). */
struct link_owner {
    bool (*begin)(void *arg, struct link *l);
    void (*arrived)(void *arg, struct link *l);
    void (*sent)(void *arg, const struct frame *p);
    void *arg;
};

void frames_add(struct frames *q, struct frame *p);
struct frame *frames_take(struct frames *q, int from); /* the oldest frame; from -1: of any rank */

/* Frames that have arrived; their data is malloc'ed. */
struct frame *frame_new(int from, size_t size); /* NULL: memory is short */
void frame_free(struct frame *p);
void frames_drain(struct frames *q); /* frees all frames */

/* The link owns the connected socket from now on. */
void link_open(struct link *l, int file);
void link_close(struct link *l);

/* Queues the frame and sends what the socket accepts without blocking; sets p->complete if that was
 * the whole frame. */
void link_send(struct link *l, struct frame *p);
/* Sends queued frames, as far as the socket accepts them. */
void link_push(struct link *l, struct link_owner owner);
/* Stops reading, because the bytes that have arrived are not the head of a frame of hvdlite. */
void link_refuse(struct link *l);
/* Reads what has arrived. */
void link_pull(struct link *l, struct link_owner owner);

/* From now on the link does not read the frame's memory. If the link has sent a part of the frame,
 * it sends the rest from a copy. If memory for the copy is short, the link sends nothing more. */
void link_forget(struct link *l, struct frame *p);

#endif
