/* What the files of point-to-point share: its messages, and what is known of peers.
 *
 * The stepping thread's, like all of p2p.h below its last line. */
#ifndef HVDLITE_ENGINE_P2P_STATE_H
#define HVDLITE_ENGINE_P2P_STATE_H

#include "engine/p2p.h"
#include "shm/shmem.h"

enum {
    P2P_SHORT = 8 << 10, /* bytes that go with the offer */
    P2P_PART = 32 << 10,
    P2P_STEP = 2 * P2P_PART, /* what is asked for at once; */
    P2P_AHEAD = 4 * P2P_STEP /* and before it has come */
};

/* The first byte of a message; those of the wire begin with another. */
enum { P2P_MARK = 0xb2 };

enum p2p_type {
    P2P_HELLO, /* this rank waits for that one, which reports it when it leaves */
    P2P_OFFER, /* name, bytes in all, data if it is short, else perhaps the address of a lane */
    /* of a send: its bytes up to this one; all of them: it has been met; code 1: by the lane */
    P2P_WANT,
    P2P_PIECE,  /* the next data of a send; code: 1 + the slot of the lane where it lies, or 0 */
    P2P_FREE,   /* code: 1 + a slot that is free again */
    P2P_REFUSE, /* a send fails: code, text */
    P2P_LEFT    /* text */
};

struct p2p_head {
    uint8_t mark, type;
    uint16_t name; /* bytes of it, or of the text, which follow; then comes data */
    uint32_t code;
    uint64_t number, bytes; /* of the send, by its sender; P2P_OFFER, P2P_WANT, P2P_PIECE */
};

/* A lane: memory of a sender's that another rank of its host maps, for long data between the two.
 *
 * Data passes through slots. The sender takes a free one, fills it and tells the receiver, which
 * copies it and frees the slot by a message. A zeroed lane is none. */
enum { LANE_SLOTS = 4, LANE_SLOT = 256 << 10 };

struct lane {
    char *memory;  /* NULL: none */
    int file;      /* the sender's; 0: none */
    bool failed;   /* there was no memory: no other try */
    unsigned busy; /* a bit for each slot; the sender's */
};

/* The sender makes it, the receiver maps it. False: it can't be; data must go in messages. */
bool lane_make(struct lane *l, char address[SHMEM_ADDRESS]);
bool lane_map(struct lane *l, const char *address);
void lane_close(struct lane *l);

int lane_take(struct lane *l); /* a slot; -1: all are busy */
static inline char *lane_slot(const struct lane *l, int slot) {
    return l->memory + (size_t)slot * LANE_SLOT;
}

struct p2p_peer {
    bool knows; /* a message has passed between the two: this rank's end must be reported to it */
    bool left;
    struct lane to, from;
    char reason[256];
};

struct p2p_offer {
    struct p2p_offer *next;
    int from;
    struct p2p_head head;
    size_t size; /* bytes of data */
    const char *name;
    char text[]; /* name, zero, data */
};

/* ---- p2p_message.c ---- */
int p2p_post(struct p2p *p, int to, struct p2p_head head, const char *name, const void *data,
             size_t size, hvd_error *err);
int p2p_want(struct p2p *p, int from, uint64_t number, uint64_t bytes, bool by_lane,
             hvd_error *err);
/* Completes a tensor that is in no list. */
void p2p_finish(struct p2p *p, struct tensor *tensor, const hvd_error *error);

/* ---- p2p_receive.c ---- */
int p2p_receive(struct p2p *p, struct tensor *tensor, hvd_error *err);
int p2p_take_offer(struct p2p *p, int from, const struct p2p_head *head, const char *rest,
                   size_t size, hvd_error *err);
/* code: as of P2P_PIECE. */
int p2p_take_piece(struct p2p *p, struct tensor *tensor, char *data, size_t size, uint32_t code,
                   hvd_error *err);
void p2p_take_left(struct p2p *p, int from, const char *text, size_t size);
int p2p_refuse_as_left(struct p2p *p, const struct p2p_offer *o, hvd_error *err);

#endif
