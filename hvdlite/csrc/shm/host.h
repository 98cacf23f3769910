/* The ranks of one host: their window, and messages through its mailboxes.
 *
 * Knows local ranks only. Messages go between local rank 0 and the others, which is where
 * the negotiation has them go; a doorbell is rung for each. One thread, but for the doorbells. */
#ifndef HVDLITE_SHM_HOST_H
#define HVDLITE_SHM_HOST_H

#include "shm/window.h"

struct host {
    struct window window;
    size_t bytes;         /* of the memory that is mapped */
    struct mail_out *out; /* [local rank] */
    struct mail_in *in;   /* [local rank] */
};

/* `memory` is window_bytes(n) of shmem_create or shmem_open; it belongs to the host from now on. */
int host_open(struct host *h, void *memory, int n, int self, hvd_error *err);
void host_close(struct host *h);

/* True: this rank and that one exchange messages here. */
bool host_reaches(const struct host *h, int local_rank);
int host_send(struct host *h, int to, const void *data, size_t size, hvd_error *err);
/* The next message and who sent it; *data NULL: there is none. */
int host_receive(struct host *h, int *from, void **data, size_t *size, hvd_error *err);
/* Moves on what had no room. */
int host_flush(struct host *h, hvd_error *err);
bool host_waits(const struct host *h); /* something still has no room */

#endif
