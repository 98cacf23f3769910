#define _GNU_SOURCE /* getrandom, SOCK_CLOEXEC */
#include "transport/nudge.h"

#include "base/clock.h"
#include "base/poller.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

struct datagram {
    uint64_t secret; /* the receiver's */
    uint32_t from, to;
};

struct peer {
    struct nudge_card card;
    _Atomic uint64_t answers; /* address and port that it nudges from; 0: it never has */
    double heard;             /* when the last message came from it; 0: none did */
    int nudged;               /* how often this rank has nudged it, up to ENOUGH */
};

struct nudges {
    int socket, self, size;
    uint64_t secret;
    struct peer *peers; /* [size] */
    struct poller *poller;
    void (*ring)(void *arg);
    void *ring_arg;
};

/* ---- opening ---- */

static bool usable(const struct ifaddrs *i) {
    return i->ifa_addr && i->ifa_addr->sa_family == AF_INET && (i->ifa_flags & IFF_UP) &&
           !(i->ifa_flags & IFF_LOOPBACK);
}

static void find_addresses(struct nudge_card *card) {
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all)) return;
    for (struct ifaddrs *i = all; i && n < NUDGE_ADDRESSES; i = i->ifa_next)
        if (usable(i))
            card->addresses[n++] = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr;
    freeifaddrs(all);
}

static bool make_card(int sock, bool one_host, struct nudge_card *card) {
    struct sockaddr_in own = {.sin_family = AF_INET};
    socklen_t length = sizeof own;
    if (one_host) own.sin_addr.s_addr = card->addresses[0] = htonl(INADDR_LOOPBACK);
    if (!one_host) find_addresses(card);
    if (getrandom(&card->secret, sizeof card->secret, 0) != sizeof card->secret) return false;
    if (bind(sock, (struct sockaddr *)&own, sizeof own)) return false;
    if (getsockname(sock, (struct sockaddr *)&own, &length)) return false;
    card->port = own.sin_port;
    return true;
}

struct nudges *nudges_open(bool one_host, struct nudge_card *card) {
    struct nudges *n = calloc(1, sizeof *n);
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (n && sock >= 0 && make_card(sock, one_host, card)) {
        *n = (struct nudges){.socket = sock, .secret = card->secret};
        return n;
    }
    if (sock >= 0) close(sock);
    free(n);
    *card = (struct nudge_card){0};
    return NULL;
}

/* ---- the poller's thread ---- */

static void note(struct nudges *n, const struct datagram *d, const struct sockaddr_in *source) {
    uint64_t answers = (uint64_t)source->sin_addr.s_addr << 16 | source->sin_port;
    atomic_store(&n->peers[d->from].answers, answers);
}

static bool accepts(const struct nudges *n, const struct datagram *d, ssize_t length) {
    return length == sizeof *d && d->secret == n->secret && d->from < (uint32_t)n->size &&
           d->to == (uint32_t)n->self;
}

/* The engine, once woken, looks at MPI for longer than this pause. */
static const double PAUSE = 200e-6;

static bool receive(void *arg, int sock) {
    struct nudges *n = arg;
    struct datagram d;
    struct sockaddr_in source;
    socklen_t size = sizeof source;
    bool nudged = false;
    for (ssize_t got;
         (got = recvfrom(sock, &d, sizeof d, MSG_TRUNC, (struct sockaddr *)&source, &size)) >= 0;
         size = sizeof source) {
        if (!accepts(n, &d, got)) continue;
        note(n, &d, &source);
        nudged = true;
    }
    if (!nudged) return true;
    n->ring(n->ring_arg);
    clock_nap(PAUSE);
    return true;
}

int nudges_start(struct nudges *n, const struct nudge_card *cards, int size, int self,
                 void (*ring)(void *arg), void *arg) {
    n->size = size;
    n->self = self;
    n->ring = ring;
    n->ring_arg = arg;
    n->peers = calloc((size_t)size, sizeof *n->peers);
    if (!n->peers) return HVD_NO_MEMORY;
    for (int i = 0; i < size; i++) n->peers[i].card = cards[i];
    HVD_TRY(poller_new(&n->poller, NULL));
    HVD_TRY(poller_add(n->poller, n->socket, receive, n, NULL));
    return poller_start(n->poller, "hvdlite-nudge", NULL);
}

/* ---- the engine's thread ---- */

static void send_to(const struct nudges *n, int to, uint32_t address, uint16_t port) {
    struct datagram d = {n->peers[to].card.secret, (uint32_t)n->self, (uint32_t)to};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = address, .sin_port = port};
    sendto(n->socket, &d, sizeof d, MSG_DONTWAIT, (struct sockaddr *)&at, sizeof at);
}

/* A rank that has sent a message looks for an answer for longer than AWAKE before it sleeps. But it
 * must get ENOUGH nudges to know that they come. */
static bool needs_none(struct peer *p, double now) {
    static const double AWAKE = 200e-6;
    enum { ENOUGH = 3 };
    if (p->nudged < ENOUGH)
        p->nudged++;
    else if (now - p->heard < AWAKE)
        return true;
    return !p->card.port;
}

void nudges_send(struct nudges *n, int to, double now) {
    if (!n || needs_none(&n->peers[to], now)) return;
    const struct nudge_card *card = &n->peers[to].card;
    uint64_t answers = atomic_load(&n->peers[to].answers);
    if (answers) {
        send_to(n, to, (uint32_t)(answers >> 16), (uint16_t)answers);
        return;
    }
    for (int i = 0; i < NUDGE_ADDRESSES && card->addresses[i]; i++)
        send_to(n, to, card->addresses[i], (uint16_t)card->port);
}

void nudges_heard(struct nudges *n, int from, double now) {
    if (n) n->peers[from].heard = now;
}

bool nudges_missing(const struct nudges *n) {
    bool missing = !n;
    for (int i = 0; n && i < n->size; i++)
        missing |= n->peers[i].heard > 0 && !atomic_load(&n->peers[i].answers);
    return missing;
}

void nudges_close(struct nudges *n) {
    if (!n) return;
    poller_free(n->poller);
    close(n->socket);
    free(n->peers);
    free(n);
}
