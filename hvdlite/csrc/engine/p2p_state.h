/* What the files p2p*.c share: the messages between two ranks, and what a rank knows of its peers.
 *
 * Only the stepping thread calls these functions. */
#ifndef HVDLITE_ENGINE_P2P_STATE_H
#define HVDLITE_ENGINE_P2P_STATE_H

#include "engine/p2p.h"
#include "shm/near.h"

enum {
    /* All numbers of this enum are chosen, not measured.
     *
     * Maximum bytes of data in an offer. With more bytes, an offer that no receive matches uses
     * more memory of the receiver. With fewer bytes, more sends wait for a P2P_WANT. */
    P2P_SHORT = 8 << 10,
    P2P_PART = 32 << 10, /* maximum bytes of data in a message; p2p_post copies them on the stack */
    /* bytes that a P2P_WANT adds; at least P2P_PART, so a message needs at most one P2P_WANT */
    P2P_STEP = 2 * P2P_PART,
    /* Maximum bytes that a receiver has asked for and not received. If more, decisions of the
     * coordinator wait behind more data. If fewer, the link is idle while a P2P_WANT travels. */
    P2P_AHEAD = 4 * P2P_STEP,
    /* maximum bytes that one step of the engine reads; the engine does nothing else meanwhile */
    P2P_READ_STEP = 1 << 20
};

/* The first byte of a message between two ranks. Messages of wire.h begin with another byte. */
enum { P2P_MARK = 0xb2 };

enum p2p_type {
    P2P_HELLO, /* asks the receiver to tell the sender when the receiver leaves */
    /* Offers a send: `code` is the dtype, `bytes` the tensor's length. After the name comes the
     * data if it is short, else a struct p2p_near if the receiver is on the same host */
    P2P_OFFER,
    /* A receive has matched the send: asks for the send's first `bytes` bytes. If `code` is 1, the
     * data must go through the bounce buffer */
    P2P_WANT,
    /* The next data of a send. If `code` is 0, the data is in the message, else in slot number
     * code - 1 of the bounce buffer */
    P2P_PIECE,
    P2P_READ,     /* the receiver has read the sender's memory, and asks if the data was valid */
    P2P_DONE,     /* the answer to P2P_READ: the send had not failed, so the data is valid */
    P2P_FREE,     /* code: 1 + a slot of the bounce buffer that is free again */
    P2P_REFUSE,   /* the send fails with this code and text */
    P2P_WITHDRAW, /* the send has waited too long and failed; so its receive must fail, too */
    P2P_LEFT      /* the sender of this message has left; the text says why */
};

struct p2p_head {
    uint8_t mark, type;
    uint16_t name;   /* bytes of the name or text that follows the head; data follows the name */
    uint32_t code;   /* see p2p_type */
    uint64_t number; /* in messages about a send: the number that its sender has given it */
    uint64_t bytes;  /* see p2p_type */
};

/* Where a sender on the receiver's host keeps long data. */
struct p2p_near {
    char bounce[SHMEM_ADDRESS]; /* address of the bounce buffer; "": there is no buffer */
    struct loan loan;           /* lends the tensor's memory */
};

enum { P2P_NOBODY = -2 }; /* no rank, and not P2P_ANY */

/* Failed sends or receives with the same name and other rank: they have waited too long. */
struct p2p_failed {
    struct p2p_failed *next;
    int peer;       /* the other rank */
    uint64_t count; /* number of failed sends or receives */
    char name[];
};

struct p2p_peer {
    bool talked; /* true: a message was sent or received, so this rank sends P2P_LEFT at its end */
    bool left;
    bool unreadable; /* the peer's memory can't be read */
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
/* Returns whether the offer matches a receive of `name` from `root`, which may be P2P_ANY. */
bool p2p_is_match(int root, const char *name, const struct p2p_offer *o);
int p2p_refuse_offer(struct p2p *p, int from, uint64_t number, const hvd_error *why,
                     hvd_error *err);
/* Completes a tensor that is in none of the lists. */
void p2p_finish(struct p2p *p, struct tensor *tensor, const hvd_error *error);

/* ---- p2p_expire.c ---- */
/* Removes a failed send or receive with this name and peer (P2P_ANY: with any peer) from the list.
 * Returns its peer; P2P_NOBODY: the list has none. */
int p2p_take_failed(struct p2p_failed **list, int peer, const char *name);
void p2p_free_failed(struct p2p_failed *list);
/* If the offer fits a receive that has failed because it waited too long, refuses the offer and
 * returns true. */
bool p2p_refuse_expired(struct p2p *p, const struct p2p_offer *o, int *code, hvd_error *err);
int p2p_take_withdrawal(struct p2p *p, int from, uint64_t number, hvd_error *err);
/* Fails a receive because its sender has withdrawn the offer. The receive must be in no list. */
void p2p_fail_withdrawn(struct p2p *p, struct tensor *tensor, int from);

/* ---- p2p_receive.c ---- */
int p2p_receive(struct p2p *p, struct tensor *tensor, hvd_error *err);
/* Reads the next P2P_READ_STEP bytes for the oldest receive that reads a sender's memory. */
int p2p_read(struct p2p *p, bool *progress, hvd_error *err);
int p2p_take_offer(struct p2p *p, int from, const struct p2p_head *head, const char *rest,
                   size_t size, hvd_error *err);
/* `code`: see P2P_PIECE. */
int p2p_take_piece(struct p2p *p, struct tensor *tensor, char *data, size_t size, uint32_t code,
                   hvd_error *err);
void p2p_take_left(struct p2p *p, int from, const char *text, size_t size);
int p2p_refuse_as_left(struct p2p *p, const struct p2p_offer *o, hvd_error *err);

#endif
