/* A nudge (a UDP datagram) wakes the rank that receives it; a foreign datagram does not. A rank
 * whose nudges never arrive is detected. */
#include "check.h"
#include "counter.h"

#include "base/poller.h"
#include "transport/nudge.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/time.h>

static void ring(void *bell) { counter_add(bell); }

enum { RANKS = 3 };

struct trio {
    struct nudges *ranks[RANKS];
    struct nudge_card cards[RANKS];
    struct counter bells[RANKS];
};

static void trio_open(struct trio *t) {
    *t = (struct trio){0};
    for (int i = 0; i < RANKS; i++) {
        t->ranks[i] = nudges_open(true, NULL, &t->cards[i]);
        REQUIRE(t->ranks[i] != NULL);
        counter_init(&t->bells[i]);
    }
}

static void trio_start(struct trio *t) {
    for (int i = 0; i < RANKS; i++)
        REQUIRE(nudges_start(t->ranks[i], t->cards, RANKS, i, ring, &t->bells[i]) == HVD_OK);
}

static void trio_close(struct trio *t) {
    for (int i = 0; i < RANKS; i++) {
        nudges_close(t->ranks[i]);
        mutex_destroy(&t->bells[i].mutex);
    }
}

/* A test with three ranks. `before` runs between opening and starting. */
#define TRIO_TEST(name, before)                                                                    \
    TEST_ON(name, struct trio, t, trio_open(t); before; trio_start(t), trio_close(t))

TRIO_TEST(test_a_nudge_rings_the_doorbell_of_its_rank, ) {
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < RANKS; i++) {
            int to = (i + 1) % RANKS;
            nudges_send(t->ranks[i], to, clock_now());
            CHECK(counter_reaches(&t->bells[to], round + 1));
        }
}

TRIO_TEST(test_a_rank_that_never_nudges_is_reported, ) {
    CHECK(!nudges_missing(t->ranks[0]));
    nudges_heard(t->ranks[0], 1, clock_now());
    CHECK(nudges_missing(t->ranks[0]));
    nudges_send(t->ranks[2], 0, clock_now());
    CHECK(counter_reaches(&t->bells[0], 1));
    CHECK(nudges_missing(t->ranks[0])); /* rank 1's datagrams are missing */
    nudges_send(t->ranks[1], 0, clock_now());
    CHECK(counter_reaches(&t->bells[0], 2));
    CHECK(!nudges_missing(t->ranks[0]));
    CHECK(nudges_missing(NULL));
}

/* A rank that has just sent a message is awake, but needs some nudges to learn that nudges
 * arrive. */
TRIO_TEST(test_a_rank_that_is_awake_is_nudged_only_at_first, ) {
    for (int i = 0; i < 3; i++) {
        nudges_heard(t->ranks[0], 1, 1000);
        nudges_send(t->ranks[0], 1, 1000);
        CHECK(counter_reaches(&t->bells[1], i + 1));
    }
    for (int i = 0; i < 100; i++) nudges_send(t->ranks[0], 1, 1000 + 1e-6 * i);
    nudges_send(t->ranks[2], 1, 1000); /* arrives after the earlier nudges */
    CHECK(counter_reaches(&t->bells[1], 4));
    CHECK_INT(counter_value(&t->bells[1]), 4);
    nudges_send(t->ranks[0], 1, 1001);
    CHECK(counter_reaches(&t->bells[1], 5));
}

TEST(test_a_nudge_reaches_a_rank_by_any_of_its_addresses) {
    struct trio t;
    trio_open(&t);
    t.cards[1].addresses[1] = t.cards[1].addresses[0];
    t.cards[1].ports[1] = t.cards[1].ports[0];
    t.cards[1].addresses[0] = htonl(INADDR_LOOPBACK + 77); /* nobody listens there */
    trio_start(&t);
    nudges_send(t.ranks[0], 1, clock_now());
    CHECK(counter_reaches(&t.bells[1], 1));
    nudges_send(t.ranks[1], 0, clock_now());
    CHECK(counter_reaches(&t.bells[0], 1));
    nudges_send(t.ranks[0], 1, clock_now());
    CHECK(counter_reaches(&t.bells[1], 2));
    trio_close(&t);
}

TRIO_TEST(test_a_rank_without_sockets_is_not_nudged, t->cards[1] = (struct nudge_card){0}) {
    nudges_send(t->ranks[0], 1, clock_now());
    nudges_send(NULL, 1, clock_now());
    nudges_heard(NULL, 1, clock_now());
    nudges_close(NULL);
}

static void send_raw(const struct trio *t, int to, const void *data, size_t size) {
    int from = socket(AF_INET, SOCK_DGRAM, 0);
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = (in_port_t)t->cards[to].ports[0],
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK_INT(sendto(from, data, size, 0, (struct sockaddr *)&at, sizeof at), (long long)size);
    close(from);
}

struct datagram {
    uint32_t from, to;
    uint64_t count, tag;
};

static struct datagram nudge_for(const struct trio *t, uint32_t from, uint32_t to, uint64_t count) {
    const uint64_t words[] = {(uint64_t)from << 32 | to, count};
    return (struct datagram){from, to, count, siphash(t->cards[1].key, words, 2)};
}

TRIO_TEST(test_only_a_fresh_nudge_with_the_key_rings_the_doorbell, ) {
    struct datagram good = nudge_for(t, 0, 1, 7), altered = good, old = nudge_for(t, 0, 1, 6),
                    newer = nudge_for(t, 0, 1, 8), other = nudge_for(t, 0, 2, 9),
                    nobody = nudge_for(t, RANKS, 1, 9);
    char large[2000] = {0};
    memcpy(large, &newer, sizeof newer);
    send_raw(t, 1, large, sizeof large);
    send_raw(t, 1, &newer, sizeof newer - 1);
    send_raw(t, 1, &newer, 0);
    send_raw(t, 1, &other, sizeof other);
    send_raw(t, 1, &nobody, sizeof nobody);
    altered.count = 1000;
    send_raw(t, 1, &altered, sizeof altered);
    newer.tag ^= 1;
    send_raw(t, 1, &newer, sizeof newer);
    CHECK_INT(counter_value(&t->bells[1]), 0);
    send_raw(t, 1, &good, sizeof good);
    CHECK(counter_reaches(&t->bells[1], 1));
    send_raw(t, 1, &good, sizeof good); /* the same datagram again */
    send_raw(t, 1, &old, sizeof old);
    nudges_send(t->ranks[2], 1, clock_now()); /* arrives after the earlier nudges */
    CHECK(counter_reaches(&t->bells[1], 2));
    CHECK_INT(counter_value(&t->bells[1]), 2);
}

/* The paper's examples: the key 00..0f; the bytes 00..07 and 00..0f as one word and two words. */
TEST(test_siphash_gives_the_published_values) {
    const struct siphash_key key = {{0x0706050403020100u, 0x0f0e0d0c0b0a0908u}};
    CHECK(siphash(key, key.half, 1) == 0x93f5f5799a932462u);
    CHECK(siphash(key, key.half, 2) == 0x3f2acc7f57c29bdbu);
}

TEST(test_sockets_for_nudges_use_only_the_chosen_interfaces) {
    uint32_t found[NUDGE_ADDRESSES];
    struct nudge_card card;
    CHECK_INT(interfaces_find("no0,lo", found, NUDGE_ADDRESSES), 1);
    CHECK_INT(found[0], htonl(INADDR_LOOPBACK));
    CHECK_INT(interfaces_find("10.1.0.0/16,127.0.0.0/8", found, NUDGE_ADDRESSES), 1);
    CHECK_INT(interfaces_find("l,loo,127.1.0.0/16,127.0.0.0/64,/,", found, NUDGE_ADDRESSES), 0);
    CHECK(nudges_open(false, "no0", &card) == NULL);
    CHECK_INT(card.ports[0], 0);
    struct nudges *n = nudges_open(false, "lo", &card);
    REQUIRE(n != NULL);
    CHECK_INT(card.addresses[0], htonl(INADDR_LOOPBACK));
    CHECK_INT(card.ports[1], 0);
    nudges_close(n);
}

static bool read_once(void *arg, int file) {
    char c;
    CHECK_INT(read(file, &c, 1), 1);
    ring(arg);
    return c != 'x';
}

TEST(test_a_handler_can_stop_watching_its_file) {
    struct counter bell;
    struct poller *p = NULL;
    int ends[2][2];
    counter_init(&bell);
    OK(poller_new(&p, ERR));
    for (int i = 0; i < 2; i++) {
        REQUIRE(pipe(ends[i]) == 0);
        OK(poller_add(p, ends[i][0], read_once, &bell, ERR));
    }
    OK(poller_start(p, "poll", ERR));
    CHECK_INT(write(ends[0][1], "ab", 2), 2);
    CHECK(counter_reaches(&bell, 2));
    CHECK_INT(write(ends[0][1], "xyz", 3), 3); /* y and z stay unread */
    CHECK(counter_reaches(&bell, 3));
    CHECK_INT(write(ends[1][1], "c", 1), 1);
    CHECK(counter_reaches(&bell, 4));
    poller_free(p);
    CHECK_INT(bell.count, 4);
    for (int i = 0; i < 4; i++) close(ends[i / 2][i % 2]);
    mutex_destroy(&bell.mutex);
    OK(poller_new(&p, ERR));
    poller_free(p); /* the poller was never started */
    poller_free(NULL);
}
