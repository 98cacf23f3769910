/* What a transport has on its own host: the layout, the window, its mailboxes, signs of life.
 *
 * Shared by transport_mpi and transport_tcp. on_host_open uses the transport's `gather`, so it is
 * collective; later only the thread that does a step of the engine calls these functions. */
#ifndef HVDLITE_TRANSPORT_ON_HOST_H
#define HVDLITE_TRANSPORT_ON_HOST_H

#include "shm/host.h"
#include "shm/life.h"
#include "transport/nudge.h"
#include "transport/transport.h"

/* What each rank tells all other ranks about itself, once. */
struct card {
    struct life_card life;
    struct nudge_card nudge;
};

/* Zeroed, with file -1: nothing is open. */
struct on_host {
    struct host host;                        /* zeroed: this host has no window */
    struct doorbell own_doorbell, *doorbell; /* `doorbell` is in the window, or own_doorbell */
    int file; /* the memory that this leader shares with its host, or -1 */
    /* The threads of life and nudges ring the doorbell. */
    struct card *cards;    /* by rank */
    struct life *life;     /* NULL: no other rank on this host, or the kernel can't report deaths */
    struct nudges *nudges; /* NULL: not needed, or sockets are refused */
};

/* t->all has rank and size. lowest: [rank], the lowest rank of its host. `window`: the ranks of a
 * host share a window if they can. `nudge`: open sockets for nudges. */
int on_host_open(struct on_host *o, struct transport *t, const int *lowest, bool window, bool nudge,
                 hvd_error *err);
/* clean: waits until the last messages are in the mailboxes, which the other ranks read until
 * BYE. */
void on_host_close(struct on_host *o, struct transport *t, bool clean);

/* Stops to watch the processes, because another transport watches them. */
void on_host_unwatch(struct on_host *o);

/* True if messages to that rank pass through mailboxes. */
bool on_host_reaches(const struct on_host *o, const struct transport *t, int to);
int on_host_send(struct on_host *o, const struct transport *t, int to, const void *data,
                 size_t size, hvd_error *err);
int on_host_receive(struct on_host *o, const struct transport *t, struct message *message,
                    hvd_error *err);

#endif
