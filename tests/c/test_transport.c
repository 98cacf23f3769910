/* The local transport: order for each pair of ranks, messages and transfers, sleeping and waking,
 * topology, faults. */
#define _GNU_SOURCE /* sched_setaffinity */
#include "check.h"

#include "base/os.h"
#include "random.h"
#include "ranks.h"
#include "shm/window.h"
#include "traffic.h"

#include <sched.h>

TEST(test_each_rank_knows_its_host_and_local_rank) {
    static const hvd_topology EXPECTED[] = {{0, 5, 0, 2, 0, 3},
                                            {1, 5, 1, 2, 0, 2},
                                            {2, 5, 0, 2, 1, 3},
                                            {3, 5, 1, 2, 1, 2},
                                            {4, 5, 0, 1, 2, 3}};
    struct local_hub *hub = local_hub_new(5, 2);
    for (int i = 0; i < 5; i++)
        CHECK(memcmp(&local_hub_rank(hub, i)->at, &EXPECTED[i], sizeof EXPECTED[i]) == 0);
    local_hub_free(hub);
    hub = local_hub_new(3, 0);
    CHECK(local_hub_rank(hub, 2)->at.local_size == 3 && local_hub_rank(hub, 2)->at.cross_size == 1);
    CHECK_INT(local_hub_rank(hub, 2)->all.hosts, 1);
    local_hub_free(hub);
}

/* Ranks alternate between two hosts. Host 0 has one rank more, which is in no lane. */
TEST(test_a_layout_is_right_if_ranks_alternate_between_hosts) {
    static const int LOWEST[] = {0, 1, 0, 1, 0}, HOST[] = {0, 2, 4}, LANE[] = {2, 3};
    OWN(hub_end) struct local_hub *hub = local_hub_on(5, LOWEST);
    const struct layout *l = &local_hub_rank(hub, 2)->layout;
    CHECK(l->hosts == 2 && l->lanes == 2 && !l->windows);
    CHECK(l->host.size == 3 && l->host.rank == 1 && memcmp(l->host.ranks, HOST, sizeof HOST) == 0);
    CHECK(l->lane.size == 2 && l->lane.rank == 0 && memcmp(l->lane.ranks, LANE, sizeof LANE) == 0);
    CHECK_INT(local_hub_rank(hub, 4)->layout.lane.size, 0);
    REQUIRE(local_hub_share(hub));
    CHECK(l->windows && l->host.window->n == 3 && l->host.window->self == 1);
    CHECK(!local_hub_rank(hub, 2)->all.window);
}

/* The ranks of a lane are in the order of their hosts, not in rising order. */
TEST(test_a_lane_is_in_the_order_of_its_hosts) {
    static const int LOWEST[] = {0, 1, 1, 0}, LANE[] = {3, 2};
    OWN(hub_end) struct local_hub *hub = local_hub_on(4, LOWEST);
    const struct comm *lane = &local_hub_rank(hub, 2)->layout.lane;
    CHECK(lane->size == 2 && lane->rank == 1 && memcmp(lane->ranks, LANE, sizeof LANE) == 0);
}

/* If a rank spins on the core of the rank for which it waits, this rank gets the core only after
 * the spin: a wait takes 134 us instead of 13 us. */
TEST(test_no_thread_spins_on_a_core_that_another_rank_uses) {
    OWN(hub_end) struct local_hub *hub = hub_of(3, 0, true);
    struct transport *t = local_hub_rank(hub, 1);
    cpu_set_t all, one;
    REQUIRE(sched_getaffinity(0, sizeof all, &all) == 0);
    CPU_ZERO(&one);
    CPU_SET((size_t)sched_getcpu(), &one);
    REQUIRE(sched_setaffinity(0, sizeof one, &one) == 0);
    t->patience.policy = (struct wait_policy){30e-6, 300e-6, NULL};
    struct window_rank *ranks = t->all.window->ranks;
    atomic_int *own = &ranks[1].cpus.last, *other = &ranks[2].cpus.last;
    CHECK(transport_policy(t).spin == 30e-6); /* spins, because no rank has published its core */
    atomic_store(other, *own + 1);
    CHECK(transport_policy(t).spin == 30e-6);
    atomic_store(other, *own);
    CHECK(transport_policy(t).spin == 0 && transport_policy(t).yield == 300e-6);
    atomic_store(own, 0); /* as if this thread had moved to the other rank's core */
    cpus_publish_core(t->all.window);
    CHECK_INT(*own, *other);
    sched_setaffinity(0, sizeof all, &all);
}

static void traffic_main(struct ranks *ranks, int rank, void *arg) {
    traffic(rank_transport(ranks, rank));
}

TEST(test_messages_and_transfers_do_not_mix) {
    for (int p = 2; p <= 5; p = more_ranks(p)) ranks_run(p, traffic_main, NULL);
}

/* If a message or a wake came after the ticket, the sleep returns immediately. */
TEST(test_a_wake_or_a_message_ends_a_sleep) {
    OWN(hub_end) struct local_hub *hub = local_hub_new(2, 0);
    struct transport *t = local_hub_rank(hub, 0);
    double start = clock_now();
    unsigned ticket = transport_listen(t);
    transport_wake(t);
    transport_sleep(t, ticket, 60);
    ticket = transport_listen(t);
    /* this message is never received, but must not leak */
    OK(transport_send(local_hub_rank(hub, 1), 0, "x", 1, ERR));
    transport_sleep(t, ticket, 60);
    CHECK(clock_now() - start < 20);
    transport_sleep(t, transport_listen(t), 0);
    CHECK(clock_now() - start < 20);
}

/* If messages do not wake a rank, the rank sleeps for shorter times. */
TEST(test_a_rank_polls_more_often_where_messages_wake_it_less) {
    OWN(hub_end) struct local_hub *hub = local_hub_new(2, 0);
    struct transport *t = local_hub_rank(hub, 0);
    double rings = transport_longest_sleep(t, true);
    t->wakes = WAKES_NUDGE;
    double nudged = transport_longest_sleep(t, true), idle = transport_longest_sleep(t, false);
    CHECK(nudged < rings && nudged < idle && idle < rings);
    t->wakes = WAKES_POLL;
    CHECK(transport_longest_sleep(t, true) < nudged && transport_longest_sleep(t, false) < idle);
    CHECK(transport_longest_sleep(t, true) <= 1e-3);
}

/* Ranks 1 and 2 report each other's death to rank 0 at the same time. */
static void two_deaths(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, 0);
    for (int i = 0; i < 2000; i++) {
        ranks_meet(ranks);
        if (rank == 1) transport_note_death(t, 2, FATE_DIED);
        if (rank == 2) transport_note_death(t, 1, FATE_SILENT);
        ranks_meet(ranks);
        if (rank) continue;
        FAILS(transport_check_life(t, ERR), HVD_RANK_DEAD);
        bool silent = strstr(ERR->text, "has not answered") != NULL;
        CHECK(silent == transport_is_dead(t, 1) && silent != transport_is_dead(t, 2));
        t->death = 0;
    }
}

TEST(test_two_deaths_at_once_do_not_mix) { ranks_run_to_break(3, two_deaths, NULL); }

/* A group learns of the death from another group of the process. */
TEST(test_all_groups_have_the_same_text_for_a_death) {
    for (int fate = 0; fate < FATES; fate++) {
        OWN(hub_end) struct local_hub *hub = local_hub_new(3, 0);
        struct transport *finds = local_hub_rank(hub, 0), *learns = local_hub_rank(hub, 1);
        hvd_error cause;
        transport_note_death(finds, 2, (enum fate)fate);
        CHECK_CODE(transport_check_life(finds, &cause), HVD_RANK_DEAD, cause);
        transport_give_up(learns, &cause);
        FAILS(transport_check_life(learns, ERR), HVD_RANK_DEAD);
        CHECK_TEXT(ERR->text, cause.text);
    }
}

/* `cause` blames more ranks of a lost host than its list can hold. */
TEST(test_a_group_gives_up_only_the_ranks_that_the_cause_lists) {
    OWN(hub_end) struct local_hub *hub = local_hub_new(3, 0);
    struct transport *t = local_hub_rank(hub, 0);
    hvd_error cause;
    error_set(&cause, HVD_RANK_DEAD, "10 ranks are lost");
    for (int i = 0; i < HVD_MAX_BLAMED + 2; i++) error_blame(&cause, 100 + i);
    cause.fate = FATE_HOST_LOST; /* lies behind the list; read as a rank it is the living rank 1 */
    transport_give_up(t, &cause);
    OK(transport_check_life(t, ERR));
    cause.blamed[HVD_MAX_BLAMED - 1] = 2;
    transport_give_up(t, &cause);
    CHECK(transport_is_dead(t, 2));
}

static int give_up(void *arg, hvd_error *err) {
    int *calls = arg;
    return ++*calls == 10 ? error_set(err, HVD_STALLED, "given up") : HVD_OK;
}

TEST(test_a_wait_for_data_ends_on_an_error) {
    OWN(hub_end) struct local_hub *hub = local_hub_new(2, 0);
    struct transport *t = local_hub_rank(hub, 0);
    struct transfer x = {{0}, 0, 0};
    int calls = 0;
    char data[4];
    t->patience.meanwhile = give_up;
    t->patience.arg = &calls;
    OK(comm_irecv(&t->all, data, sizeof data, 1, &x, ERR));
    FAILS(comm_wait(&t->all, &x, &(struct waiter){0}, ERR), HVD_STALLED);
    CHECK_INT(calls, 10);
    t->patience.timeout = 0.02;
    FAILS(comm_wait(&t->all, &x, &(struct waiter){0}, ERR), HVD_TRANSPORT);
    CHECK_HAS(ERR->text, "rank 1");
    t->patience.timeout = 0;
    local_hub_break(hub, 0);
    FAILS(comm_wait(&t->all, &x, &(struct waiter){0}, ERR), HVD_TRANSPORT);
    struct transfer y = {{0}, 0, 0}, z = {{0}, 0, 0};
    FAILS(comm_isend(&t->all, data, 1, 1, &y, ERR), HVD_TRANSPORT);
    FAILS(comm_irecv(&t->all, data, 1, 1, &z, ERR), HVD_TRANSPORT);
    OK(transport_send(t, 1, "x", 1, ERR)); /* messages still work */
    t->ops->abandon(t);
    transport_close(t, false);
}
