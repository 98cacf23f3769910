/* Nudges: UDP datagrams that wake a rank of another host, where no doorbell reaches.
 *
 * MPI can only be polled. So a rank that has sent a message also sends the receiver a nudge, which
 * means "poll MPI now". A nudge carries no data, and only ends a sleep. It may be lost, or arrive
 * before its message. A separate thread receives nudges and rings this rank's doorbell. Unless a
 * comment says otherwise, only the engine's thread calls these functions.
 *
 * Each rank sends the other ranks its card: the addresses and ports of its sockets, and a key. A
 * nudge contains a tag made with the receiver's key and an increasing number, so the receiver can
 * ignore foreign and repeated datagrams. At first a rank nudges each address of the receiver from
 * each of its own sockets, until a nudge from the receiver shows which pair works. */
#ifndef HVDLITE_TRANSPORT_NUDGE_H
#define HVDLITE_TRANSPORT_NUDGE_H

#include "base/siphash.h"

#include <stdbool.h>

/* Chosen, not measured: until this rank knows which pair of sockets works, a nudge is one datagram
 * for each pair, at most 16. */
enum { NUDGE_ADDRESSES = 4 };

struct nudge_card {
    struct siphash_key key;
    uint32_t addresses[NUDGE_ADDRESSES]; /* IPv4, in network byte order */
    uint32_t ports[NUDGE_ADDRESSES];     /* in network byte order; 0: no more sockets */
};

struct nudges;

/* Binds one socket to each address of this host that interfaces_find(interfaces) finds; if all
 * ranks are on this host (one_host), only to the loopback address. Returns NULL and zeroes the card
 * if there is no such address or sockets are not allowed. */
struct nudges *nudges_open(bool one_host, const char *interfaces, struct nudge_card *card);

/* Copies `cards`, an array of size. A thread calls `ring` after datagrams that wake this rank.
 * Fails if memory is short or the thread can't start. */
int nudges_start(struct nudges *n, const struct nudge_card *cards, int size, int self,
                 void (*ring)(void *arg), void *arg);

/* Wakes the rank with a datagram, unless the rank is surely awake. From here on n may be NULL. */
void nudges_send(struct nudges *n, int to, double now);

/* Records that a message from the rank has arrived, so the rank is awake. nudges_missing returns
 * true until a datagram from the same rank has arrived, too. */
void nudges_heard(struct nudges *n, int from, double now);

/* Returns true if messages of some rank arrive without nudges, so that only polling finds them. */
bool nudges_missing(const struct nudges *n);

void nudges_close(struct nudges *n);

/* Stores up to `most` IPv4 addresses of this host, in network byte order; returns their number.
 * `wanted`: names of interfaces and networks ("eth0,10.1.0.0/16"); NULL: all except the
 * loopback. */
int interfaces_find(const char *wanted, uint32_t *addresses, int most);

#endif
