/* Shared by the files of point-to-point: the messages and the state of peers.
 *
 * The stepping thread's, like the last part of p2p.h. */
#ifndef HVDLITE_ENGINE_P2P_STATE_H
#define HVDLITE_ENGINE_P2P_STATE_H

#include "engine/p2p.h"
#include "shm/shmem.h"

enum {
    P2P_SHORT = 8 << 10, /* bytes that are sent with the offer */
    P2P_PART = 32 << 10,
    P2P_STEP = 2 * P2P_PART, /* bytes that a P2P_WANT asks for, and */
    P2P_AHEAD = 4 * P2P_STEP /* the most that are asked for and have not come */
};

/* The first byte of a message; messages of wire.h begin with another. */
enum { P2P_MARK = 0xb2 };

enum p2p_type {
    P2P_HELLO, /* asks the receiver to tell the sender when it leaves */
    /* code: dtype; name, total bytes, data if short, else the address of a bounce
     * buffer, if any */
    P2P_OFFER,
    /* asks for a send's bytes up to `bytes`, or says by `bytes` = all that a receive has
     * matched; code 1: the data must go through the bounce buffer */
    P2P_WANT,
    /* a send's next data; code: 1 + the slot of the bounce buffer that holds the data; 0: the data
     * follows */
    P2P_PIECE,
    P2P_FREE,   /* code: 1 + a slot that is free again */
    P2P_REFUSE, /* a send fails: code, text */
    P2P_LEFT    /* text */
};

struct p2p_head {
    uint8_t mark, type;
    uint16_t name; /* length of the name or text that follows; data comes after it */
    uint32_t code;
    uint64_t number,
        bytes; /* the sender's number of the send (P2P_OFFER, P2P_WANT, P2P_PIECE); bytes */
};

/* A bounce buffer: memory of a sender that a receiver on its host maps, for long data between both.
 *
 * Data passes through slots. The sender fills a free slot and sends its number; the receiver copies
 * the data and frees the slot by a message. Zeroed: there is no bounce buffer. */
enum { BOUNCE_SLOTS = 4, BOUNCE_SLOT = 256 << 10 };

struct bounce {
    char *memory;  /* NULL: none */
    int file;      /* the sender's descriptor of the memory; 0: none */
    bool failed;   /* there was no memory, so a bounce buffer is not tried again */
    unsigned busy; /* for the sender: a bit for each busy slot */
};

/* The sender makes the bounce buffer, the receiver maps it. False: there is none, so data must go
 * in messages. */
bool bounce_make(struct bounce *l, char address[SHMEM_ADDRESS]);
bool bounce_map(struct bounce *l, const char *address);
void bounce_close(struct bounce *l);

int bounce_take(struct bounce *l); /* takes a free slot; -1: all are busy */
static inline char *bounce_slot(const struct bounce *l, int slot) {
    return l->memory + (size_t)slot * BOUNCE_SLOT;
}

struct p2p_peer {
    /* a message has passed between this rank and the peer, so the peer must be told when this
     * rank leaves */
    bool knows;
    bool left;
    struct bounce to, from;
    char reason[256];
};

struct p2p_offer {
    struct p2p_offer *next;
    int from;
    struct p2p_head head;
    size_t size; /* bytes of data */
    const char *name;
    char text[]; /* the name, a zero byte, the data */
};

/* ---- p2p_message.c ---- */
int p2p_post(struct p2p *p, int to, struct p2p_head head, const char *name, const void *data,
             size_t size, hvd_error *err);
int p2p_want(struct p2p *p, int from, uint64_t number, uint64_t bytes, bool by_bounce,
             hvd_error *err);
/* Completes a tensor that is in no list. */
void p2p_finish(struct p2p *p, struct tensor *tensor, const hvd_error *error);

/* ---- p2p_receive.c ---- */
int p2p_receive(struct p2p *p, struct tensor *tensor, hvd_error *err);
int p2p_take_offer(struct p2p *p, int from, const struct p2p_head *head, const char *rest,
                   size_t size, hvd_error *err);
/* `code`: as in P2P_PIECE. */
int p2p_take_piece(struct p2p *p, struct tensor *tensor, char *data, size_t size, uint32_t code,
                   hvd_error *err);
void p2p_take_left(struct p2p *p, int from, const char *text, size_t size);
int p2p_refuse_as_left(struct p2p *p, const struct p2p_offer *o, hvd_error *err);

#endif
