/* The choice of an allreduce or broadcast with messages: the cost of a message determines the
 * limits between algorithms. Also the calibration, which measures that cost. */
#include "check.h"

#include "collectives/coll.h"
#include "collectives/costs.h"
#include "ranks.h"
#include "transport/transports.h"

static const struct cost SLOW = COST_OF(100e-6, 42e-9, 1.26), FAST = COST_OF(30e-6, 1e-9, 1),
                         FAR = COST_OF(20e-3, 1e-9, 1);

/* Costs measured between simulated hosts; the number is the links' rate in Gbit/s. */
static const struct cost AT_10 = {26e-6, 1.037e-9, 0.837e-9, 0.837e-9, 0, 1},
                         AT_25 = {26e-6, 0.535e-9, 0.335e-9, 0.335e-9, 0, 1},
                         AT_100 = {26e-6, 0.284e-9, 0.161e-9, 0.298e-9, 0.328, 1};

/* Returns a comm of p hosts with one rank each, on links with this cost. */
static struct comm *on(int p, struct cost cost) {
    static struct transport t;
    static struct comm comm;
    t = (struct transport){.pace = PACE_DEFAULT, .cost = cost};
    comm = (struct comm){.transport = &t, .size = p, .hosts = p};
    return &comm;
}

static enum coll_cheap cheapest(int p, struct cost cost, hvd_dtype dtype, size_t bytes) {
    return coll_cheapest(on(p, cost), reduce_kernels(dtype, HVD_SUM), bytes);
}

TEST(test_small_data_takes_few_steps_and_large_data_takes_the_ring) {
    static const int RANKS[] = {2, 3, 4, 7, 8, 64, 1000};
    static const struct cost COSTS[] = {SLOW, FAST, FAR};
    for (int i = 0; i < 7; i++) {
        for (int c = 0; c < 3; c++) {
            enum coll_cheap last = COLL_DOUBLING;
            CHECK_INT(cheapest(RANKS[i], COSTS[c], HVD_FLOAT32, 8), COLL_DOUBLING);
            CHECK_INT(cheapest(RANKS[i], COSTS[c], HVD_FLOAT32, (size_t)1 << 40), COLL_RING);
            for (size_t bytes = 8; bytes < (size_t)1 << 40; bytes *= 2) {
                enum coll_cheap next = cheapest(RANKS[i], COSTS[c], HVD_FLOAT32, bytes);
                CHECK(next >= last); /* larger data never goes back to an earlier algorithm */
                last = next;
            }
        }
    }
}

TEST(test_few_ranks_never_take_the_circulant) {
    for (int p = 2; p <= 3; p++)
        for (size_t bytes = 8; bytes < (size_t)1 << 40; bytes *= 2)
            CHECK(cheapest(p, FAST, HVD_FLOAT32, bytes) != COLL_CIRCULANT);
}

/* On 512 ranks a ring takes 52 ms for 64 KB, because it sends 1022 messages one after another. */
TEST(test_many_ranks_choose_the_circulant_algorithm_for_medium_sizes) {
    CHECK_INT(cheapest(512, FAST, HVD_FLOAT32, 64 << 10), COLL_CIRCULANT);
    CHECK_INT(cheapest(8, FAST, HVD_FLOAT32, 128 << 10), COLL_CIRCULANT);
    CHECK_INT(cheapest(8, SLOW, HVD_FLOAT32, 64 << 10), COLL_RING);
}

TEST(test_a_sum_sent_in_a_wider_dtype_costs_more) {
    size_t border[2] = {8, 8};
    while (cheapest(8, FAST, HVD_FLOAT32, border[0]) != COLL_RING) border[0] += 64;
    while (cheapest(8, FAST, HVD_FLOAT16, border[1]) != COLL_RING) border[1] += 64;
    CHECK(border[1] < border[0]);
}

TEST(test_the_log_says_which_algorithm_runs_at_which_size) {
    struct comm *comm = on(8, COST_FIXED);
    char text[200], small[20];
    coll_choices_text(comm, text, sizeof text);
    CHECK_TEXT(text, "recursive doubling up to 16 KiB, circulant up to 256 KiB, then ring");
    coll_choices_text(comm, small, sizeof small);
    CHECK_TEXT(small, "recursive doubling ");
}

/* With HVDLITE_DETERMINISTIC only tensors below this limit are fused, because recursive doubling
 * adds all elements in the same order. */
TEST(test_doubling_is_chosen_for_all_sizes_below_its_limit) {
    for (int p = 2; p < 100; p++) {
        size_t border = coll_doubling_bytes(on(p, COST_FIXED));
        CHECK(border >= 2048);
        for (size_t bytes = 8; bytes <= border; bytes += 8) {
            CHECK_INT(cheapest(p, COST_FIXED, HVD_FLOAT16, bytes), COLL_DOUBLING);
            CHECK_INT(cheapest(p, COST_FIXED, HVD_FLOAT32, bytes), COLL_DOUBLING);
        }
    }
}

/* At 200 Mbit/s a broadcast of 64 KiB took 7.2 ms on 4 hosts and 12 ms on 8 hosts with the tree,
 * 3.0 ms and 4.7 ms with a chain. */
TEST(test_the_cost_of_messages_decides_between_tree_and_chain) {
    for (int p = 4; p <= 64; p++) {
        CHECK(coll_tree_is_cheaper(on(p, SLOW), 8) && coll_tree_is_cheaper(on(p, FAR), 64 << 10));
        CHECK(!coll_tree_is_cheaper(on(p, SLOW), 64 << 10) || p > 16);
        CHECK(!coll_tree_is_cheaper(on(p, SLOW), 4 << 20) &&
              !coll_tree_is_cheaper(on(p, FAST), 64 << 20));
    }
}

TEST(test_a_chain_has_segments_of_the_cheapest_length) {
    CHECK_INT(coll_chain_segment(on(4, SLOW), 64 << 10),
              8832); /* sqrt(bytes * seconds per message / 2 / seconds per byte), in cache lines */
    CHECK_INT(coll_chain_segment(on(4, SLOW), (size_t)1 << 40), PACE_DEFAULT.segment);
    CHECK_INT(coll_chain_segment(on(2, SLOW), 64 << 10), PACE_DEFAULT.segment);
    CHECK_INT(coll_chain_segment(on(4, (struct cost)COST_OF(0, 1e-9, 1)), 64 << 10), 1024);
}

TEST(test_a_link_with_a_long_delay_has_more_segments_in_flight) {
    CHECK_INT(coll_depth(SLOW, 61440), PACE_DEFAULT.depth);
    CHECK_INT(coll_depth(FAST, 61440), PACE_DEFAULT.depth);
    CHECK_INT(coll_depth((struct cost)COST_OF(500e-6, 1e-9, 1), 61440), 32);
    CHECK_INT(coll_depth(FAR, 61440), PACE_MOST_DEPTH);
    CHECK_INT(coll_depth((struct cost){0}, 61440), PACE_DEFAULT.depth);
}

/* For 4 MB on 64 simulated hosts with 10 Gbit/s the circulant took 9.0 ms, because segments sent
 * ahead competed with segments that ranks waited for. With two segments ahead it takes 7.3 ms. */
TEST(test_an_exchange_sends_at_most_as_many_segments_ahead_as_a_link_holds) {
    CHECK_INT(coll_exchange_depth(on(64, AT_10)), 2);
    CHECK_INT(coll_exchange_depth(on(64, AT_100)), 5);
    CHECK_INT(coll_exchange_depth(on(64, FAR)), PACE_DEFAULT.depth);
    CHECK_INT(coll_exchange_depth(on(64, (struct cost){0})), PACE_DEFAULT.depth);
}

/* For 256 KB on 2 hosts with 100 Gbit/s a ring takes 191 us, recursive doubling 157 us. */
TEST(test_two_hosts_with_links_of_100_gbit_choose_doubling_for_256_kb) {
    CHECK_INT(cheapest(2, AT_100, HVD_FLOAT32, 256000), COLL_DOUBLING);
}

/* A core that sends and receives is slower than a link of 100 Gbit/s. A choice by the link's costs
 * alone takes 1.06 to 1.12 times as long as the fastest algorithm. */
TEST(test_the_choice_considers_a_core_that_is_slower_than_the_link) {
    CHECK_INT(cheapest(32, AT_100, HVD_FLOAT32, 4000000), COLL_CIRCULANT);
    CHECK_INT(cheapest(8, AT_100, HVD_FLOAT32, 1000000), COLL_CIRCULANT);
    CHECK_INT(cheapest(8, AT_100, HVD_FLOAT32, 256000), COLL_DOUBLING);
}

/* Racks share links that have half the rate of the other links. */
TEST(test_links_that_slow_far_messages_favor_the_ring) {
    struct cost racks = AT_25;
    racks.far = 1.65;
    CHECK_INT(cheapest(64, AT_25, HVD_FLOAT32, 6 << 20), COLL_CIRCULANT);
    CHECK_INT(cheapest(64, racks, HVD_FLOAT32, 6 << 20), COLL_RING);
    CHECK_INT(cheapest(64, racks, HVD_FLOAT32, 4000000), COLL_CIRCULANT);
    CHECK_INT(cheapest(64, AT_25, HVD_FLOAT32, 16000000), COLL_RING);
}

/* If the number of ranks is not a power of two, recursive doubling needs two more messages. */
TEST(test_doubling_takes_more_steps_unless_ranks_are_a_power_of_two) {
    CHECK_INT(cheapest(64, AT_10, HVD_FLOAT32, 32000), COLL_DOUBLING);
    CHECK_INT(cheapest(48, AT_10, HVD_FLOAT32, 32000), COLL_CIRCULANT);
}

/* ---- the calibration: all ranks get the same costs; on one host nothing is sent ---- */

static struct cost costs[MOST_RANKS];

static void calibrate(struct ranks *ranks, int rank, void *arg) {
    OK(coll_calibrate(&rank_transport(ranks, rank)->all, &costs[rank], ERR));
}

static void check_hosts(int size, const int *lowest) {
    ranks_run_hub(size, hub_on(size, lowest, false), calibrate, NULL);
    for (int r = 0; r < size; r++) {
        CHECK(costs[r].alpha > 0 && costs[r].first > 0 && costs[r].next > 0 && costs[r].beta > 0);
        CHECK(costs[r].message >= 0 && costs[r].message <= 1 && costs[r].far >= 1);
        CHECK(memcmp(&costs[r], &costs[0], sizeof costs[r]) == 0);
    }
}

TEST(test_the_calibration_gives_all_ranks_the_same_costs) {
    check_hosts(2, (const int[]){0, 1});
    check_hosts(4, (const int[]){0, 1, 1, 1}); /* uneven hosts: ranks 2 and 3 send nothing */
    check_hosts(5, (const int[]){0, 1, 0, 1, 4});
    check_hosts(9, (const int[]){0, 1, 2, 3, 4, 5, 6, 7, 8});
}

TEST(test_one_host_measures_nothing) {
    check_hosts(3, (const int[]){0, 0, 0});
    CHECK_NEAR(costs[0].alpha, COST_ON_A_HOST.alpha, 0);
}

static void broken(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank);
    t->patience.timeout = 0.2;
    if (rank == 1) local_hub_break(ranks->hub, rank);
    FAILS(coll_calibrate(&t->all, &costs[rank], ERR), HVD_TRANSPORT);
}

TEST(test_the_calibration_fails_on_a_broken_link) {
    static const int LOWEST[] = {0, 1, 2};
    ranks_run_by(-1, 3, local_hub_on(3, LOWEST), broken, NULL);
}
