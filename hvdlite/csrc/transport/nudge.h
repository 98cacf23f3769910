/* Nudges: datagrams that wake a rank of another host, which no doorbell reaches.
 *
 * MPI can only be polled. So a rank that has sent a message nudges the receiver: "look at MPI now".
 * A nudge carries no data; it may be lost, or arrive before its message. It only ends a sleep. A
 * separate thread receives nudges and rings this rank's doorbell. Unless noted, only the engine's
 * thread calls these functions.
 *
 * Each rank sends the others its card: the addresses and ports of its sockets, and a key. A nudge
 * has a tag that needs the receiver's key, and a growing number, so foreign and repeated datagrams
 * are ignored. A rank is nudged at every address, from every socket, until a nudge from that rank
 * shows which pair works.
 */
#ifndef HVDLITE_TRANSPORT_NUDGE_H
#define HVDLITE_TRANSPORT_NUDGE_H

#include "base/siphash.h"

#include <stdbool.h>

enum { NUDGE_ADDRESSES = 4 };

struct nudge_card {
    struct siphash_key key;
    uint32_t addresses[NUDGE_ADDRESSES]; /* IPv4 addresses in network byte order */
    uint32_t ports[NUDGE_ADDRESSES];     /* ports in network byte order; 0: no further socket */
};

struct nudges;

/* one_host: all ranks are on this host. `interfaces`: see interfaces_find. Binds a socket to each
 * of this host's addresses and to no other. Returns NULL and zeroes the card if sockets are refused
 * or the host has no such address. */
struct nudges *nudges_open(bool one_host, const char *interfaces, struct nudge_card *card);

/* `cards`: [size], of all ranks; copied. After a nudge another thread calls `ring`. Fails without
 * memory or without a thread. */
int nudges_start(struct nudges *n, const struct nudge_card *cards, int size, int self,
                 void (*ring)(void *arg), void *arg);

/* Nudges the rank unless it must be awake. Here and below n may be NULL: nothing happens. */
void nudges_send(struct nudges *n, int to, double now);

/* A message came from the rank: it is awake, and should have nudged this rank. */
void nudges_heard(struct nudges *n, int from, double now);

/* True: a rank's messages come without nudges, so only polling finds them. */
bool nudges_missing(const struct nudges *n);

void nudges_close(struct nudges *n);

/* The IPv4 addresses of this host. Fills in up to `most` addresses, in network order; returns how
 * many there are. `wanted`: names of interfaces and networks ("eth0,10.1.0.0/16"); NULL: all but
 * the loopback. */
int interfaces_find(const char *wanted, uint32_t *addresses, int most);

#endif
