/* The ranks of one host: their window, and messages through its mailboxes.
 *
 * Knows only local ranks. The negotiation needs messages between local rank 0 and the others: their
 * mailboxes are looked into often, and lie in the window. Those of other pairs follow it, and take
 * no memory until they are used. Each message rings a doorbell. One thread, except for the
 * doorbells. */
#ifndef HVDLITE_SHM_HOST_H
#define HVDLITE_SHM_HOST_H

#include "shm/window.h"

struct host {
    struct window window;
    uint64_t seen;        /* of what other ranks than local rank 0 have written to this one */
    struct mail_out *out; /* [local rank] */
    struct mail_in *in;   /* [local rank] */
};

/* Of the memory, which begins with the window. */
size_t host_bytes(int n);
/* `memory`: of so many bytes, from shmem_map; the host owns it from now on. */
int host_open(struct host *h, void *memory, int n, int self, hvd_error *err);
void host_close(struct host *h);

/* True if messages between this rank and that one pass through mailboxes. */
bool host_reaches(const struct host *h, int local_rank);
int host_send(struct host *h, int to, const void *data, size_t size, hvd_error *err);
/* The next message and its sender; *data NULL: none. */
int host_receive(struct host *h, int *from, void **data, size_t *size, hvd_error *err);
/* Writes waiting messages into the mailboxes, as far as there is room. */
int host_flush(struct host *h, hvd_error *err);
bool host_waits(const struct host *h); /* some message still waits for room */

#endif
