/* The calibration: all ranks get the same costs; on one host nothing is sent. */
#include "check.h"

#include "collectives/costs.h"
#include "ranks.h"

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

TEST(test_all_ranks_agree) {
    check_hosts(2, (const int[]){0, 1});
    check_hosts(4, (const int[]){0, 1, 1, 1}); /* most ranks are in no lane */
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

TEST(test_a_broken_link_ends_it) {
    static const int LOWEST[] = {0, 1, 2};
    ranks_run_by(-1, 3, local_hub_on(3, LOWEST), broken, NULL);
}
