/* What a transport has on its own host: the layout, the window, its mailboxes, signs of life.
 *
 * The same for all transports of processes. It opens by the transport's `gather`, which is
 * collective; later only the engine's thread calls it. */
#ifndef HVDLITE_TRANSPORT_ON_HOST_H
#define HVDLITE_TRANSPORT_ON_HOST_H

#include "shm/host.h"
#include "shm/life.h"
#include "transport/nudge.h"
#include "transport/transport.h"

/* Each rank tells all others its card, once. */
struct card {
    struct life_card life;
    struct nudge_card nudge;
};

/* Zeroed, with file -1: nothing is open. */
struct on_host {
    struct host host;                        /* zeroed: this host has no window */
    struct doorbell own_doorbell, *doorbell; /* in the window; without a window its own */
    int file; /* the memory that this leader shares with its host, or -1 */
    /* Signs of other ranks apart from messages ring the doorbell, from other threads: */
    struct card *cards;    /* [rank] */
    struct life *life;     /* NULL: this rank is alone on its host, or deaths can't be seen here */
    struct nudges *nudges; /* NULL: nobody needs them, or sockets are refused */
};

/* t->all has rank and size. lowest: [rank], the lowest rank of its host. `window`: the ranks of a
 * host share one where they can. `nudge`: open a socket. */
int on_host_open(struct on_host *o, struct transport *t, const int *lowest, bool window, bool nudge,
                 hvd_error *err);
/* clean: the last messages wait for room; the others read until BYE. */
void on_host_close(struct on_host *o, struct transport *t, bool clean);

/* Another transport watches these processes. */
void on_host_unwatch(struct on_host *o);

/* True if messages to that rank pass through mailboxes. */
bool on_host_reaches(const struct on_host *o, const struct transport *t, int to);
int on_host_send(struct on_host *o, const struct transport *t, int to, const void *data,
                 size_t size, hvd_error *err);
int on_host_receive(struct on_host *o, const struct transport *t, struct message *message,
                    hvd_error *err);

#endif
