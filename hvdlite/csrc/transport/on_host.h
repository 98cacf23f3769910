/* The part of a transport that concerns this host: layout, window, mailboxes, signs of life.
 *
 * transport_mpi and transport_tcp share it. on_host_open is collective, because it uses the
 * transport's `gather`. After that, only the thread that steps the engine calls these functions. */
#ifndef HVDLITE_TRANSPORT_ON_HOST_H
#define HVDLITE_TRANSPORT_ON_HOST_H

#include "shm/life.h"
#include "shm/mailbox.h"
#include "transport/nudge.h"
#include "transport/transport.h"

/* What each rank sends once to all other ranks about itself. */
struct card {
    struct life_card life;
    struct nudge_card nudge;
};

/* Zeroed with file -1: nothing is open. */
struct on_host {
    struct host host; /* zeroed: this host has no window */
    /* `doorbell` points into the window or to own_doorbell */
    struct doorbell own_doorbell, *doorbell;
    /* if this rank is its host's leader: the file of the memory that the host shares; else -1 */
    int file;
    struct card *cards; /* array by rank */
    /* Threads of `life` and `nudges` ring the doorbell. life NULL: this host has no other rank, or
     * the kernel can't report deaths. nudges NULL: not needed, or sockets are not allowed. */
    struct life *life;
    struct nudges *nudges;
};

/* t->all must have rank and size. lowest[r]: the lowest rank of the host of rank r. The caller sets
 * t->wakes for ranks that share no memory; WAKES_POLL becomes WAKES_NUDGE. */
int on_host_open(struct on_host *o, struct transport *t, const int *lowest,
                 const struct transport_config *config, hvd_error *err);
/* clean: waits until this rank's last messages are in the receivers' mailboxes. There will be room,
 * because each rank reads its mailbox until the coordinator's last message, BYE. */
void on_host_close(struct on_host *o, struct transport *t, bool clean);

/* Stops watching processes, because another transport watches them. */
void on_host_unwatch(struct on_host *o);

/* Returns whether messages to the rank pass through mailboxes. */
bool on_host_reaches(const struct on_host *o, const struct transport *t, int to);
int on_host_send(struct on_host *o, const struct transport *t, int to, const void *data,
                 size_t size, hvd_error *err);
int on_host_receive(struct on_host *o, const struct transport *t, struct message *message,
                    hvd_error *err);

#endif
