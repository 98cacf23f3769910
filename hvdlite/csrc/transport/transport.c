#include "transport/transport.h"

static const double LONGEST_DEAF_NAP = 10e-3; /* some messages wake nobody */

int transport_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    return t->ops->send(t, to, data, size, err);
}

int transport_receive(struct transport *t, struct message *message, hvd_error *err) {
    *message = (struct message){.from = -1};
    return t->ops->receive(t, message, err);
}

unsigned transport_listen(struct transport *t) { return t->ops->listen(t); }

void transport_sleep(struct transport *t, unsigned ticket, double seconds) {
    t->ops->sleep(t, ticket, t->rings || seconds < LONGEST_DEAF_NAP ? seconds : LONGEST_DEAF_NAP);
}

void transport_wake(struct transport *t) { t->ops->wake(t); }

void transport_abandon(struct transport *t) { t->ops->abandon(t); }

void transport_close(struct transport *t, bool clean) { t->ops->close(t, clean); }
