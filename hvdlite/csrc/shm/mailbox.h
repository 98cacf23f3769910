/* Mailboxes: rings of bytes in shared memory. One rank writes a mailbox, another rank reads it.
 *
 * A mailbox carries messages in order, each as a length and its bytes; a message longer than the
 * ring passes in several parts. Neither side blocks. A zeroed ring is empty. Each side checks the
 * counts and lengths that it reads; if they are damaged, it returns an error, and reads or writes
 * nothing outside of the ring. */
#ifndef HVDLITE_SHM_MAILBOX_H
#define HVDLITE_SHM_MAILBOX_H

#include "base/error.h"
#include "shm/window.h"

/* MAILBOX_BYTES: bytes of the ring; chosen, not measured. MAILBOX_LONGEST: bytes of the longest
 * message. mailbox_send refuses longer messages, so a reader treats a larger length as damage. */
enum { MAILBOX_BYTES = 64 * 1024, MAILBOX_LONGEST = 1 << 30 };

/* A mailbox, which both ranks map. Each count of bytes has its own cache line. */
struct mailbox {
    _Alignas(64) _Atomic uint64_t written;
    _Alignas(64) _Atomic uint64_t read;
    _Alignas(64) unsigned char bytes[MAILBOX_BYTES];
};

/* The writer's data, in its own memory. Zeroed: nothing has been written. */
struct mail_out {
    uint64_t written;       /* bytes written so far; the mailbox has a copy for the reader */
    unsigned char *waiting; /* the bytes from `sent` to `size` wait for room; size 0: none */
    size_t sent, size, capacity;
};

/* The reader's data, in its own memory: the message that is arriving. Zeroed: no message. */
struct mail_in {
    uint64_t read; /* bytes read so far; the mailbox has a copy for the writer */
    /* `size`: bytes of the message and of its 8-byte length; 0: unknown. `arrived`: how many of
     * these bytes have been read. */
    uint64_t size, arrived;
    unsigned char length[8], *data;
};

/* Queues the message, then writes as many queued bytes as the ring has room for. */
int mailbox_send(struct mailbox *box, struct mail_out *out, const void *data, size_t size,
                 hvd_error *err);
/* Writes more of the queued messages. */
int mailbox_flush(struct mailbox *box, struct mail_out *out, hvd_error *err);
/* Returns the next complete message, which the caller frees. *data NULL: no message. */
int mailbox_receive(struct mailbox *box, struct mail_in *in, void **data, size_t *size,
                    hvd_error *err);

void mail_out_free(struct mail_out *out);
void mail_in_free(struct mail_in *in);

/* ---- the memory that the ranks of one host share: host.c ----
 *
 * This memory contains the window, and then one mailbox for each ordered pair of ranks; mailboxes
 * take no memory until they are used. Ranks are local ranks. Each message rings the receiver's
 * doorbell. One thread calls these functions. */

struct host {
    struct window window;
    /* letters.written (host.c) when this rank last found all its mailboxes empty */
    uint64_t seen;
    struct mail_out *out; /* by local rank */
    struct mail_in *in;   /* by local rank */
};

/* Returns the bytes of memory that the n ranks of a host share. */
size_t host_bytes(int n);
/* `memory`: host_bytes(n) bytes from shmem_map; the host owns it from now on. */
int host_open(struct host *h, void *memory, int n, int self, hvd_error *err);
void host_close(struct host *h);

/* Returns whether messages to and from this local rank pass through mailboxes. */
bool host_reaches(const struct host *h, int local_rank);
int host_send(struct host *h, int to, const void *data, size_t size, hvd_error *err);
/* Returns the next message and its sender. *data NULL: no message. */
int host_receive(struct host *h, int *from, void **data, size_t *size, hvd_error *err);
/* Writes queued messages into the mailboxes, as far as there is room. */
int host_flush(struct host *h, hvd_error *err);
bool host_waits(const struct host *h); /* true: a queued message still waits for room */

#endif
