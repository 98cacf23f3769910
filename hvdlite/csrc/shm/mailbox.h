/* A mailbox: a ring of bytes in memory that two ranks share, one writes and the other reads.
 *
 * Carries messages, each a length and its bytes, in order; a message longer than the ring
 * goes through it in pieces. Neither side ever waits. A zeroed ring is empty. Each side checks what
 * it reads there: damaged counts or lengths are an error, never a wild read or write. */
#ifndef HVDLITE_SHM_MAILBOX_H
#define HVDLITE_SHM_MAILBOX_H

#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MAILBOX_BYTES = 64 * 1024, MAILBOX_LONGEST = 1 << 30 /* bytes of a message */ };

/* The shared part: counts of bytes ever written and read, each on its writer's cache line. */
struct mailbox {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(64) unsigned char bytes[MAILBOX_BYTES];
};

/* The writer's own part. Zeroed: nothing is written. */
struct mail_out {
    uint64_t written;       /* its count, which the ring repeats for the reader */
    unsigned char *waiting; /* from `sent` to `size`: what did not fit yet; size 0: nothing */
    size_t sent, size, capacity;
};

/* The reader's own part: its count, and the message that is arriving. Zeroed: none. */
struct mail_in {
    uint64_t read;
    uint64_t size, got; /* bytes, the 8 of the length included; 0: not known yet */
    unsigned char length[8], *data;
};

/* Puts the message into the ring, behind what waits, as far as there is room. */
int mailbox_send(struct mailbox *box, struct mail_out *out, const void *data, size_t size,
                 hvd_error *err);
/* Puts in more of what waits. */
int mailbox_flush(struct mailbox *box, struct mail_out *out, hvd_error *err);
/* The next whole message, malloc'ed, or *data NULL. */
int mailbox_receive(struct mailbox *box, struct mail_in *in, void **data, size_t *size,
                    hvd_error *err);

void mail_out_free(struct mail_out *out);
void mail_in_free(struct mail_in *in);

#endif
