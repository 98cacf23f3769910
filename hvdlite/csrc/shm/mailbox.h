/* A mailbox: a ring of bytes in shared memory that one rank writes and another reads.
 *
 * Carries messages in order, each a length and its bytes; a message longer than the ring passes in
 * pieces. Neither side waits. A zeroed ring is empty. Each side checks the counts and lengths that
 * it reads: damaged ones are an error, never a wild read or write. */
#ifndef HVDLITE_SHM_MAILBOX_H
#define HVDLITE_SHM_MAILBOX_H

#include "base/error.h"

#include <stdatomic.h>

enum { MAILBOX_BYTES = 64 * 1024, MAILBOX_LONGEST = 1 << 30 /* bytes of a message */ };

/* The shared part. Each byte total is on a cache line of the side that updates it. */
struct mailbox {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(64) unsigned char bytes[MAILBOX_BYTES];
};

/* The writer's part. Zeroed: nothing written. */
struct mail_out {
    uint64_t written;       /* the writer's count; the ring has a copy for the reader */
    unsigned char *waiting; /* bytes `sent` to `size` wait for room; size 0: none do */
    size_t sent, size, capacity;
};

/* The reader's part: its count, and the message that is arriving. Zeroed: no message. */
struct mail_in {
    uint64_t read;
    uint64_t size, got; /* bytes of the message and its 8 of length, 0: not known yet; bytes read */
    unsigned char length[8], *data;
};

/* Appends the message to the waiting ones and writes as much as the ring has room for. */
int mailbox_send(struct mailbox *box, struct mail_out *out, const void *data, size_t size,
                 hvd_error *err);
/* Writes more of the waiting messages. */
int mailbox_flush(struct mailbox *box, struct mail_out *out, hvd_error *err);
/* The next whole message, malloc'ed; *data NULL: none. */
int mailbox_receive(struct mailbox *box, struct mail_in *in, void **data, size_t *size,
                    hvd_error *err);

void mail_out_free(struct mail_out *out);
void mail_in_free(struct mail_in *in);

#endif
