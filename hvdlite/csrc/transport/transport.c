#include "transport/transport.h"

#include "base/os.h"
#include "shm/window.h"
#include "transport/on_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int transport_receive(struct transport *t, struct message *message, hvd_error *err) {
    *message = (struct message){.from = -1};
    return t->ops->receive(t, message, err);
}

/* Polling MPI takes about 30 us, so polling every millisecond costs 3 % of a core. The engine polls
 * so often only while a tensor waits. If the datagram that should end a sleep (nudge) is lost, the
 * engine finds the message when it polls after the sleep. */
double transport_longest_sleep(struct transport *t, bool pending) {
    static const double POLL = 1e-3, LONGEST[][2] = {/* seconds: idle, with pending tensors */
                                                     [WAKES_POLL] = {10e-3, POLL},
                                                     [WAKES_NUDGE] = {50e-3, 10e-3},
                                                     [WAKES_MESSAGE] = {0.5, 0.5},
                                                     [WAKES_DATA] = {0.5, 0.5}};
    if (t->ops->polls && t->ops->polls(t)) return POLL;
    return LONGEST[atomic_load(&t->wakes)][pending];
}

struct wait_policy transport_policy(const struct transport *t) {
    struct wait_policy policy = t->patience.policy;
    struct window *host = t->layout.host.window;
    if (policy.spin > 0 && host && cpus_crowded(host)) policy.spin = 0;
    return policy;
}

bool transport_is_dead(const struct transport *t, int rank) {
    int death = atomic_load_explicit(&t->death, memory_order_acquire);
    return death && (death - 1) / FATES == rank;
}

void transport_note_death(struct transport *t, int rank, enum fate fate) {
    int none = 0;
    atomic_compare_exchange_strong(&t->death, &none, 1 + rank * FATES + (int)fate);
    t->ops->wake(t);
}

void transport_died(struct transport *t, int rank, enum fate fate) {
    (t->ops->died ? t->ops->died : transport_note_death)(t, rank, fate);
}

void transport_give_up(struct transport *t, const hvd_error *cause) {
    /* the cause may come from a damaged message */
    bool known = cause->fate >= 0 && cause->fate < FATES;
    enum fate fate = known ? (enum fate)cause->fate : FATE_SILENT;
    for (int r = 0; cause->code == HVD_RANK_DEAD && r < t->at.size; r++)
        for (int i = 0; i < error_nlisted(cause) && r != t->at.rank; i++)
            if (transport_job_rank(t, r) == cause->blamed[i]) transport_died(t, r, fate);
}

void transport_await(struct transport *job, int rank, int by) {
    if (job->awaited) atomic_fetch_add(&job->awaited[rank], by);
}

bool transport_awaits(const struct transport *t, int rank) {
    return t->awaited && atomic_load(&t->awaited[rank]) > 0;
}

/* Two machines may have the same name. If `host` is also the name of this rank's host, this rank's
 * host is not lost. */
void transport_lose_host(struct transport *t, const char *host) {
    for (int r = 0; t->cards && r < t->at.size; r++) {
        const char *own = t->cards[t->at.rank].life.host;
        if (host ? strcmp(t->cards[r].life.host, host) == 0 && strcmp(own, host) != 0
                 : r != t->at.rank)
            transport_died(t, r, FATE_HOST_LOST);
    }
}

void transport_who(const struct transport *t, int rank, char who[TRANSPORT_WHO]) {
    const struct life_card *card = t->cards ? &t->cards[rank].life : NULL;
    snprintf(who, TRANSPORT_WHO, "rank %d (process %lld on host %s)", transport_job_rank(t, rank),
             card ? (long long)card->pid : 0, card ? card->host : "?");
}

int transport_blame(const struct transport *t, int rank, hvd_error *err) {
    error_blame(err, transport_job_rank(t, rank));
    transport_complete(t, err);
    return err->code;
}

void transport_complete(const struct transport *t, hvd_error *err) {
    for (int r = 0; err->nblamed && t->cards && r < t->at.size; r++) {
        if (transport_job_rank(t, r) != err->blamed[0]) continue;
        err->pid = t->cards[r].life.pid;
        snprintf(err->host, sizeof err->host, "%s", t->cards[r].life.host);
    }
}

int transport_dead(const struct transport *t, int rank, enum fate fate, hvd_error *err) {
    char who[TRANSPORT_WHO];
    transport_who(t, rank, who);
    if (fate == FATE_SILENT)
        error_set(err, HVD_RANK_DEAD,
                  "%s has not answered for %g s: it is stopped, or its host is lost", who,
                  t->silence);
    else
        error_set(err, HVD_RANK_DEAD, "%s %s", who,
                  fate == FATE_DIED ? "is dead" : "is lost: its host has vanished");
    transport_blame(t, rank, err);
    err->fate = (int)fate;
    return HVD_RANK_DEAD;
}

int transport_check_life(const struct transport *t, hvd_error *err) {
    int death = atomic_load_explicit(&t->death, memory_order_acquire);
    if (!death) return HVD_OK;
    int rank = (death - 1) / FATES, fate = (death - 1) % FATES;
    transport_dead(t, rank, (enum fate)fate, err);
    for (int r = rank + 1; fate == FATE_HOST_LOST && r < t->at.size; r++)
        if (strcmp(t->cards[r].life.host, t->cards[rank].life.host) == 0)
            error_blame(err, transport_job_rank(t, r));
    return HVD_RANK_DEAD;
}

bool transport_find_dead(const struct transport *t, hvd_error *cause) {
    /* Longer than GRACE in shm/life.c, after which the end of a process is reported. If several
     * ranks die one after another, the report may come later, up to GRACES times GRACE; then this
     * rank's error names the broken transfer instead of a dead rank. */
    static const double PATIENCE = 50e-3, LOOK = 1e-3;
    for (double until = clock_now() + PATIENCE; clock_now() < until; clock_nap(LOOK))
        if (transport_check_life(t, cause)) return true;
    return false;
}

void transport_linger(struct transport *t) {
    /* Seconds; chosen, not measured. With a shorter LINGER, messages about the cause of a failure
     * may be lost. A message is sent up to LOOK late. */
    static const double LINGER = 0.2, LOOK = 2e-3;
    struct message m;
    hvd_error err;
    double until = transport_rings(t) ? 0 : clock_now() + LINGER;
    for (; clock_now() < until; clock_nap(LOOK)) {
        if (transport_receive(t, &m, &err)) return;
        free(m.data);
    }
}

void *transport_gather(struct transport *t, const void *own, size_t each, hvd_error *err) {
    char *all = calloc((size_t)t->all.size, each);
    if (!all) {
        error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", t->all.size);
        return NULL;
    }
    memcpy(all + (size_t)t->all.rank * each, own, each);
    if (!t->ops->gather(t, all, each, err)) return all;
    free(all);
    return NULL;
}

int transport_agree(struct transport *t, int code, hvd_error *err) {
    hvd_error lost;
    int first = 0, *codes = transport_gather(t, &code, sizeof code, &lost);
    if (!codes && !code) *err = lost;
    if (!codes) return err->code;
    while (first < t->at.size && codes[first] == HVD_OK) first++;
    free(codes);
    if (code || first == t->at.size) return code;
    error_set(err, HVD_RANK_LEFT, "rank %d could not start: see the error of that rank", first);
    return transport_blame(t, first, err);
}
