/* Signs of other ranks apart from messages: nudges, and the ends of their processes.
 *
 * Each rank tells all others its card, once. Both ring this rank's doorbell from other threads. */
#ifndef HVDLITE_TRANSPORT_SIGNS_H
#define HVDLITE_TRANSPORT_SIGNS_H

#include "shm/life.h"
#include "transport/nudge.h"
#include "transport/transport.h"

struct card {
    struct life_card life;
    struct nudge_card nudge;
};

/* Zeroed: no signs. */
struct signs {
    struct card *cards;    /* [rank] */
    struct life *life;     /* NULL: this rank is alone on its host, or deaths can't be seen here */
    struct nudges *nudges; /* NULL: nobody needs them, or sockets are refused */
};

/* Fills in this rank's card, at cards[rank]. `nudge`: open a socket. */
int signs_open(struct signs *s, const struct transport *t, bool nudge, hvd_error *err);
/* All cards are known. What can't be watched is left unwatched. */
void signs_start(struct signs *s, struct transport *t);
/* The transport sees deaths itself, and in their order. */
void signs_unwatch(struct signs *s);
void signs_close(struct signs *s);

#endif
