#define _GNU_SOURCE /* getrandom, SOCK_CLOEXEC, IFF_UP */
#include "transport/nudge.h"

#include "base/os.h"
#include "base/poller.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

/* Wakes a rank. `count` increases with each datagram from one rank to another, so that the receiver
 * ignores copies of old datagrams. */
struct datagram {
    uint32_t from, to;
    uint64_t count;
    uint64_t tag; /* hash of the other fields, with the receiver's key */
};

struct contact {
    struct nudge_card card;
    /* the address and port from which the rank's datagrams come; 0: none has arrived */
    _Atomic uint64_t answers;
    _Atomic int sock; /* this rank's socket that received these datagrams */
    uint64_t sent;    /* number of datagrams sent to the rank */
    uint64_t count;   /* `count` of the rank's last datagram */
    double met;       /* time of the rank's last message; 0: none has arrived */
    int nudged;       /* number of calls of nudges_send, counted up to ENOUGH */
};

struct nudges {
    int sockets[NUDGE_ADDRESSES], nsockets, self, size;
    struct siphash_key key;
    struct contact *contacts; /* array of size */
    struct poller *poller;
    void (*ring)(void *arg);
    void *ring_arg;
};

/* ---- addresses ---- */

static bool in_network(uint32_t address, const char *network) {
    char text[INET_ADDRSTRLEN] = "";
    struct in_addr base;
    int bits;
    if (sscanf(network, "%15[0-9.]/%d", text, &bits) != 2 || bits < 0 || bits > 32) return false;
    if (inet_pton(AF_INET, text, &base) != 1) return false;
    return !bits || !((ntohl(address) ^ ntohl(base.s_addr)) >> (32 - bits));
}

static bool is_wanted(const char *name, uint32_t address, const char *wanted) {
    char word[64]; /* room for any interface name or network */
    for (size_t n; *wanted; wanted += n + (wanted[n] != '\0')) {
        n = strcspn(wanted, ",");
        if (n >= sizeof word) continue;
        memcpy(word, wanted, n);
        word[n] = '\0';
        if (strcmp(word, name) == 0 || in_network(address, word)) return true;
    }
    return false;
}

static bool is_usable_interface(const struct ifaddrs *i, const char *wanted) {
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) return false;
    uint32_t address = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr;
    return wanted ? is_wanted(i->ifa_name, address, wanted) : !(i->ifa_flags & IFF_LOOPBACK);
}

int interfaces_find(const char *wanted, uint32_t *addresses, int most) {
    struct ifaddrs *all = NULL;
    int n = 0;
    if (getifaddrs(&all)) return 0;
    for (struct ifaddrs *i = all; i && n < most; i = i->ifa_next)
        if (is_usable_interface(i, wanted))
            addresses[n++] = ((struct sockaddr_in *)(void *)i->ifa_addr)->sin_addr.s_addr;
    freeifaddrs(all);
    return n;
}

/* ---- opening ---- */

/* Returns the socket, or -1. */
static int listen_at(uint32_t address, uint32_t *port) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = address};
    socklen_t length = sizeof own;
    int sock = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (sock < 0) return -1;
    if (bind(sock, (struct sockaddr *)&own, length) ||
        getsockname(sock, (struct sockaddr *)&own, &length)) {
        close(sock);
        return -1;
    }
    *port = own.sin_port;
    return sock;
}

static void open_sockets(struct nudges *n, bool one_host, const char *interfaces,
                         struct nudge_card *card) {
    uint32_t addresses[NUDGE_ADDRESSES] = {htonl(INADDR_LOOPBACK)};
    int found = one_host ? 1 : interfaces_find(interfaces, addresses, NUDGE_ADDRESSES);
    for (int i = 0; i < found; i++) {
        int sock = listen_at(addresses[i], &card->ports[n->nsockets]);
        if (sock < 0) continue;
        card->addresses[n->nsockets] = addresses[i];
        n->sockets[n->nsockets++] = sock;
    }
}

struct nudges *nudges_open(bool one_host, const char *interfaces, struct nudge_card *card) {
    struct nudges *n = calloc(1, sizeof *n);
    *card = (struct nudge_card){0};
    if (!n) return NULL;
    if (getrandom(&n->key, sizeof n->key, 0) == sizeof n->key)
        open_sockets(n, one_host, interfaces, card);
    card->key = n->key;
    if (n->nsockets) return n;
    nudges_close(n);
    return NULL;
}

static uint64_t tag_of(struct siphash_key key, const struct datagram *d) {
    const uint64_t words[] = {(uint64_t)d->from << 32 | d->to, d->count};
    return siphash(key, words, 2);
}

/* ---- the poller's thread ---- */

static bool accepts(const struct nudges *n, const struct datagram *d, ssize_t length) {
    return length == sizeof *d && d->tag == tag_of(n->key, d) && d->from < (uint32_t)n->size &&
           d->to == (uint32_t)n->self && d->count > n->contacts[d->from].count;
}

/* Seconds for which this thread sleeps after a nudge, so that several nudges wake the engine once.
 * Shorter than the time for which a woken engine polls MPI, so no message waits. */
static const double PAUSE = 200e-6;

static bool receive(void *arg, int sock) {
    struct nudges *n = arg;
    struct datagram d;
    struct sockaddr_in source;
    socklen_t size = sizeof source;
    bool nudged = false;
    for (ssize_t length;
         (length = recvfrom(sock, &d, sizeof d, MSG_TRUNC, (struct sockaddr *)&source, &size)) >= 0;
         size = sizeof source) {
        if (!accepts(n, &d, length)) continue;
        struct contact *p = &n->contacts[d.from];
        p->count = d.count;
        atomic_store(&p->sock, sock);
        atomic_store(&p->answers, (uint64_t)source.sin_addr.s_addr << 16 | source.sin_port);
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
    n->contacts = calloc((size_t)size, sizeof *n->contacts);
    if (!n->contacts) return HVD_NO_MEMORY;
    for (int i = 0; i < size; i++) n->contacts[i].card = cards[i];
    HVD_TRY(poller_new(&n->poller, NULL));
    for (int i = 0; i < n->nsockets; i++)
        HVD_TRY(poller_add(n->poller, n->sockets[i], receive, n, NULL));
    return poller_start(n->poller, "hvdlite-nudge", NULL);
}

/* ---- the engine's thread ---- */

static void send_to(int sock, const struct datagram *d, uint32_t address, uint32_t port) {
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_addr.s_addr = address, .sin_port = (in_port_t)port};
    sendto(sock, d, sizeof *d, MSG_DONTWAIT, (struct sockaddr *)&at, sizeof at);
}

/* Returns true if the rank can't receive datagrams that wake it (nudges), or is awake, because it
 * has just sent a message. An awake rank gets ENOUGH nudges, too: it learns that nudges arrive. */
static bool needs_no_nudge(struct contact *p, double now) {
    static const double AWAKE = 200e-6; /* a sender of a message stays awake so many seconds */
    enum { ENOUGH = 3 };                /* chosen: the network may lose a datagram */
    if (p->nudged < ENOUGH)
        p->nudged++;
    else if (now - p->met < AWAKE)
        return true;
    return !p->card.ports[0];
}

static void send_everywhere(const struct nudges *n, const struct datagram *d,
                            const struct nudge_card *card) {
    for (int sock = 0; sock < n->nsockets; sock++)
        for (int i = 0; i < NUDGE_ADDRESSES && card->ports[i]; i++)
            send_to(n->sockets[sock], d, card->addresses[i], card->ports[i]);
}

void nudges_send(struct nudges *n, int to, double now) {
    if (!n || needs_no_nudge(&n->contacts[to], now)) return;
    struct contact *p = &n->contacts[to];
    struct datagram d = {(uint32_t)n->self, (uint32_t)to, ++p->sent, 0};
    d.tag = tag_of(p->card.key, &d);
    uint64_t answers = atomic_load(&p->answers);
    if (answers)
        send_to(atomic_load(&p->sock), &d, (uint32_t)(answers >> 16), (uint16_t)answers);
    else
        send_everywhere(n, &d, &p->card);
}

void nudges_heard(struct nudges *n, int from, double now) {
    if (n) n->contacts[from].met = now;
}

bool nudges_missing(const struct nudges *n) {
    bool missing = !n;
    for (int i = 0; n && i < n->size; i++)
        missing |= n->contacts[i].met > 0 && !atomic_load(&n->contacts[i].answers);
    return missing;
}

void nudges_close(struct nudges *n) {
    if (!n) return;
    poller_free(n->poller);
    for (int i = 0; i < n->nsockets; i++) close(n->sockets[i]);
    free(n->contacts);
    free(n);
}
