#include "transport/signs.h"

#include "base/env.h"

#include <stdlib.h>

int signs_open(struct signs *s, const struct transport *t, bool nudge, hvd_error *err) {
    s->cards = calloc((size_t)t->all.size, sizeof *s->cards);
    if (!s->cards) return error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", t->all.size);
    struct card *own = &s->cards[t->all.rank];
    own->life = life_card_of_this_process();
    if (nudge)
        s->nudges = nudges_open(t->all.hosts == 1, env_text("NETWORK_INTERFACES"), &own->nudge);
    return HVD_OK;
}

static void died(void *transport, int rank) { transport_note_death(transport, rank); }
static void wake(void *transport) { transport_wake(transport); }

static int watch_host(struct signs *s, struct transport *t) {
    const struct comm *host = &t->layout.host;
    HVD_TRY(life_open(&s->life, host->size, died, t));
    for (int i = 0; i < host->size; i++)
        if (i != host->rank)
            HVD_TRY(life_add(s->life, &s->cards[host->ranks[i]].life, host->ranks[i]));
    return life_start(s->life);
}

static int start_nudges(struct signs *s, struct transport *t) {
    size_t n = (size_t)t->all.size;
    struct nudge_card *cards = malloc(n * sizeof *cards);
    if (!cards) return HVD_NO_MEMORY;
    for (size_t i = 0; i < n; i++) cards[i] = s->cards[i].nudge;
    int code = nudges_start(s->nudges, cards, t->all.size, t->all.rank, wake, t);
    free(cards);
    return code;
}

void signs_unwatch(struct signs *s) {
    life_close(s->life);
    s->life = NULL;
}

static void close_nudges(struct signs *s) {
    nudges_close(s->nudges);
    s->nudges = NULL;
}

void signs_start(struct signs *s, struct transport *t) {
    t->cards = s->cards;
    if (t->layout.host.size > 1 && watch_host(s, t)) signs_unwatch(s);
    if (s->nudges && start_nudges(s, t)) close_nudges(s);
}

void signs_close(struct signs *s) {
    signs_unwatch(s);
    close_nudges(s);
    free(s->cards);
    s->cards = NULL;
}
