/* Transfers and messages between all ranks of a transport of at most TRAFFIC_RANKS ranks. */
#ifndef HVDLITE_TRAFFIC_H
#define HVDLITE_TRAFFIC_H

#include "check.h"

#include "random.h"
#include "transport/transport.h"

enum { ROUNDS = 300, TRAFFIC_RANKS = 9 };

static inline size_t length_of(int from, int to, int round) {
    return (size_t)(from * 31 + to * 17 + round * 7) % 97;
}

static inline int receive_messages(struct transport *t, int *from, int wanted) {
    for (int n = 0; n < wanted; n++) {
        struct message m;
        OK(transport_receive(t, &m, ERR));
        if (!m.data) return n;
        if (!CHECK(m.from >= 0 && m.from < t->at.size)) return wanted;
        int round = from[m.from]++;
        CHECK_INT(m.size, length_of(m.from, t->at.rank, round));
        CHECK(is_mixed(m.data, m.size, seed_of(m.from, t->at.rank, round)));
        free(m.data);
    }
    return wanted;
}

/* Every rank calls it: sends transfers and messages to every rank. For each pair they arrive in
 * order; transfers and messages never mix. */
static inline void traffic(struct transport *t) {
    const int rank = t->at.rank, size = t->at.size;
    int from[TRAFFIC_RANKS] = {0}, heard = 0, all = ROUNDS * (size - 1);
    for (int round = 0; round < ROUNDS; round++) {
        struct transfer in[TRAFFIC_RANKS] = {{{0}, 0, 0}}, out[TRAFFIC_RANKS] = {{{0}, 0, 0}};
        unsigned char got[TRAFFIC_RANKS][97], data[TRAFFIC_RANKS][97];
        for (int p = 0; p < size; p++) {
            if (p == rank) continue;
            fill_mixed(data[p], length_of(rank, p, round), seed_of(rank, p, round));
            OK(comm_irecv(&t->all, got[p], length_of(p, rank, round), p, &in[p], ERR));
            OK(transport_send(t, p, data[p], length_of(rank, p, round), ERR));
            OK(comm_isend(&t->all, data[p], length_of(rank, p, round), p, &out[p], ERR));
        }
        for (int p = size - 1; p >= 0; p--) {
            OK(comm_wait(&t->all, &out[p], &(struct waiter){0}, ERR));
            OK(comm_wait(&t->all, &in[p], &(struct waiter){0}, ERR));
            CHECK(!in[p].active && !out[p].active);
            if (p == rank) continue;
            CHECK(is_mixed(got[p], length_of(p, rank, round), seed_of(p, rank, round)));
        }
        heard += receive_messages(t, from, all - heard);
    }
    while (heard < all) heard += receive_messages(t, from, all - heard);
    CHECK_INT(receive_messages(t, from, 1), 0);
}

#endif
