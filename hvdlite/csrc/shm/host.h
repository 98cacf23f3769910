/* The memory that the ranks of one host share.
 *
 * It begins with the window. Ranks in this file are local ranks. There is one mailbox for each
 * ordered pair of ranks, behind the window; mailboxes take no memory until they are used. Each
 * message rings a doorbell. One thread calls these functions, except for the doorbells. */
#ifndef HVDLITE_SHM_HOST_H
#define HVDLITE_SHM_HOST_H

#include "shm/mailbox.h"
#include "shm/window.h"

struct host {
    struct window window;
    /* number of messages written to this rank's mailboxes until the last look */
    uint64_t seen;
    struct mail_out *out; /* by local rank */
    struct mail_in *in;   /* by local rank */
};

/* Bytes of the memory, which begins with the window. */
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
