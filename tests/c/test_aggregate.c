/* The tree: decisions reach every rank once, and no rank sends many messages. Aggregates: ranks
 * combine reports on the way up, and the coordinator gets each report once and in time. */
#include "check.h"

#include "negotiation/aggregate.h"
#include "negotiation/tree.h"
#include "random.h"

enum { MOST = 40, IDS = 5, LATE = 60 };

static const double STEP = 1e-3;

/* Ranks that combine requests in a tree, without a transport. In a step, messages move up by one
 * rank. */
struct job {
    int size;
    struct tree trees[MOST];
    struct aggregate aggregates[MOST];
    struct wire_writer out[MOST];
    double now;
    int hits[MOST][IDS]; /* how often the coordinator has received the rank's request by id */
    int changed[MOST];   /* by rank: number of its requests that the coordinator has received */
    bool over[MOST];     /* by rank: the coordinator has received the rank's join or LEAVE */
    int items;
};

static void job_open(struct job *job, int size, const int *host_of) {
    *job = (struct job){.size = size, .now = 1};
    for (int r = 0; r < size; r++) {
        OK(tree_open(&job->trees[r], r, size, host_of, ERR));
        aggregate_open(&job->aggregates[r], &job->trees[r]);
    }
}

static void job_close(struct job *job) {
    for (int r = 0; r < job->size; r++) {
        aggregate_close(&job->aggregates[r]);
        tree_close(&job->trees[r]);
        wire_free(&job->out[r]);
    }
}

static int take(struct job *job, int rank, int from, struct wire_item item, hvd_error *err) {
    return aggregate_take(&job->aggregates[rank], from, &item, job->now, &job->out[rank], err);
}

static void say(struct job *job, int rank, enum wire_type type, uint64_t id) {
    struct wire_item item = {.type = type, .rank = rank, .id = id};
    if (type == WIRE_REQUEST) item.request.kind = HVD_JOIN;
    OK(take(job, rank, rank, item, ERR));
}

static void say_changed(struct job *job, int rank, uint64_t id) {
    struct wire_item item = {.type = WIRE_REQUEST, .rank = rank, .instead = id};
    OK(take(job, rank, rank, item, ERR));
}

static void coordinator_hears(struct job *job, const struct wire_item *item) {
    const struct tree *tree = &job->trees[0];
    int many = item->type == WIRE_HITS ? tree->many[item->rank] : 1;
    job->items++;
    for (int i = 0; i < many; i++) {
        int rank = tree->ranks[tree->at[item->rank] + i];
        CHECK(!job->over[rank]);
        if (item->type == WIRE_HIT || item->type == WIRE_HITS)
            job->hits[rank][item->id]++;
        else if (item->type == WIRE_REQUEST && item->request.kind != HVD_JOIN)
            job->changed[rank]++;
        else
            job->over[rank] = true;
    }
}

/* Delivers a rank's message to its parent; rank 0's message to the coordinator. */
static void deliver(struct job *job, int rank) {
    struct wire_writer *out = &job->out[rank];
    int parent = job->trees[rank].parents[rank];
    struct wire_reader reader = {0};
    struct wire_item item = {.type = WIRE_RUN};
    bool more = out->size > 0;
    if (more) OK(wire_open(&reader, out->data, out->size, ERR));
    while (more) {
        OK(wire_next(&reader, &item, &more, ERR));
        if (more && parent > 0) OK(take(job, parent, rank, item, ERR));
        if (more && parent <= 0) coordinator_hears(job, &item);
    }
    wire_reader_free(&reader);
    wire_reset(out);
}

static void step(struct job *job) {
    job->now += STEP;
    for (int r = job->size - 1; r >= 0; r--) {
        OK(aggregate_late(&job->aggregates[r], job->now, &job->out[r], ERR));
        deliver(job, r);
    }
}

static void steps(struct job *job, double seconds) {
    for (double until = job->now + seconds; job->now < until;) step(job);
}

static int missing(const struct job *job, int id, int rounds) {
    int n = 0;
    for (int r = 0; r < job->size; r++) n += job->hits[r][id] != rounds;
    return n;
}

static void decide(struct job *job, uint64_t id) {
    for (int r = 0; r < job->size; r++) aggregate_decided(&job->aggregates[r], id);
}

#define JOB_TEST(name) TEST_ON(name, struct job, job, job_open(job, 8, HOSTS), job_close(job))

static const int HOSTS[8] = {0, 0, 1, 1, 1, 2, 2, 2};

JOB_TEST(test_a_leader_sends_equal_cache_hits_of_its_host_as_one_item) {
    for (int round = 1; round <= 3; round++) {
        job->items = 0;
        for (int r = 0; r < job->size; r++) say(job, r, WIRE_HIT, 2);
        step(job);
        CHECK_INT(missing(job, 2, round), 0);
        CHECK_INT(job->items, 4); /* one item each from rank 0, rank 1 and two hosts */
        decide(job, 2);
    }
}

JOB_TEST(test_a_late_rank_delays_the_other_ranks_requests_only_a_moment) {
    for (int r = 0; r < job->size; r++)
        if (r != 3) say(job, r, WIRE_HIT, 0);
    step(job);
    CHECK_INT(missing(job, 0, 1), 3); /* all ranks of rank 3's host, because its leader waits */
    CHECK(aggregate_sleep(&job->aggregates[2], job->now, 1) < AGGREGATE_SECONDS);
    steps(job, AGGREGATE_SECONDS);
    CHECK(aggregate_sleep(&job->aggregates[2], job->now, 1) == 1);
    CHECK_INT(missing(job, 0, 1), 1);
    say(job, 3, WIRE_HIT, 0);
    step(job);
    CHECK_INT(missing(job, 0, 1), 0);
    decide(job, 0);
    job->items = 0;
    for (int r = 0; r < job->size; r++) say(job, r, WIRE_HIT, 0);
    step(job);
    CHECK_INT(missing(job, 0, 2), 0);
    CHECK_INT(job->items, 4);
}

JOB_TEST(test_a_leader_passes_on_submissions_before_their_ranks_end) {
    say(job, 6, WIRE_HIT, 1);
    say(job, 6, WIRE_REQUEST, 0); /* a join */
    say(job, 3, WIRE_HIT, 1);
    say(job, 3, WIRE_LEAVE, 0);
    step(job);
    CHECK(job->over[6] && job->over[3]);
    CHECK(job->hits[6][1] == 1 && job->hits[3][1] == 1);
    say(job, 5, WIRE_HIT, 1); /* reports no longer wait for rank 6 */
    step(job);
    CHECK_INT(job->hits[5][1], 1);
    aggregate_joined(&job->aggregates[5]);
    decide(job, 1);
    say(job, 5, WIRE_HIT, 1);
    step(job);
    CHECK_INT(job->hits[5][1], 1);
    steps(job, AGGREGATE_SECONDS);
    CHECK_INT(job->hits[5][1], 2);
}

/* The rows of an allgather may change in each step. A changed tensor gets a new id, so a leader
 * must not keep requests with the old id until the rank that has changed the tensor sends one. */
JOB_TEST(test_no_rank_waits_for_a_rank_whose_tensor_has_changed) {
    /* the first rank of a host reports a change (id 1), then the last rank of a host (id 2) */
    for (uint64_t id = 1; id <= 2; id++) {
        int changed = id == 1 ? 2 : 4;
        for (int r = 0; r < job->size; r++)
            r == changed ? say_changed(job, r, id) : say(job, r, WIRE_HIT, id);
        step(job);
        CHECK_INT(missing(job, (int)id, 1), 1);
        CHECK_INT(job->changed[changed], 1);
    }
    CHECK(job->aggregates[2].newest != NULL);
    steps(job, AGGREGATE_FORGETS + STEP);
    CHECK(!job->aggregates[2].newest);
}

/* Rank 17, which is rank 37's leader, sends to rank 1, and rank 1 sends to rank 0. */
TEST(test_two_leaders_in_a_row_do_not_keep_requests_back_for_a_late_rank) {
    static struct job job;
    int host_of[MOST];
    for (int r = 0; r < MOST; r++) host_of[r] = r % 20;
    job_open(&job, MOST, host_of);
    for (int r = 0; r < MOST; r++)
        if (r != 37) say(&job, r, WIRE_HIT, 4);
    steps(&job, 3 * AGGREGATE_SECONDS);
    CHECK_INT(missing(&job, 4, 1), 1);
    say(&job, 37, WIRE_HIT, 4);
    step(&job);
    CHECK_INT(missing(&job, 4, 1), 0);
    job_close(&job);
}

TEST(test_each_report_arrives_once_whenever_ranks_submit) {
    static struct job job;
    uint64_t random = 11;
    for (int run = 0; run < 200; run++) {
        int size = 1 + (int)random_below(&random, MOST - 1), host_of[MOST], due[MOST][IDS];
        int hosts = 1 + (int)random_below(&random, (size_t)size);
        for (int r = 0; r < size; r++) host_of[r] = r % hosts;
        job_open(&job, size, host_of);
        for (int round = 1; round <= 4; round++) {
            for (int r = 0; r < size; r++)
                for (int id = 0; id < IDS; id++)
                    due[r][id] = random_below(&random, 4) ? 0 : (int)random_below(&random, LATE);
            for (int t = 0; t < LATE; t++) {
                for (int r = 0; r < size; r++)
                    for (int id = 0; id < IDS; id++)
                        if (due[r][id] == t) say(&job, r, WIRE_HIT, (uint64_t)id);
                step(&job);
            }
            steps(&job, 3 * AGGREGATE_SECONDS); /* leaders may keep requests for so long */
            for (int id = 0; id < IDS; id++) {
                CHECK_INT(missing(&job, id, round), 0);
                decide(&job, (uint64_t)id);
            }
        }
        for (int r = 0; r < size; r++) CHECK(!job.aggregates[r].newest);
        job_close(&job);
    }
}

JOB_TEST(test_an_item_that_this_rank_may_not_send_is_an_error) {
    struct wire_item hit = {.type = WIRE_HIT, .rank = 3, .id = 1};
    CHECK_INT(take(job, 2, 3, hit, ERR), HVD_OK);
    CHECK_INT(take(job, 2, 3, hit, ERR), HVD_INTERNAL);
    for (int rank = -1; rank <= 8; rank++) {
        hit.rank = rank;
        if (rank != 4) CHECK_INT(take(job, 2, 4, hit, ERR), HVD_INTERNAL);
    }
    hit.rank = 6;
    CHECK_INT(take(job, 2, 6, hit, ERR), HVD_INTERNAL); /* rank 6 is on another host */
    CHECK_INT(take(job, 2, 0, hit, ERR), HVD_INTERNAL);
    struct wire_item run = {.type = WIRE_RUN, .rank = 4};
    CHECK_INT(take(job, 2, 4, run, ERR), HVD_INTERNAL);
}

/* ---- the tree ---- */

enum { MOST_PLACED = 600 };

struct placement {
    int size, hosts;
    int host_of[MOST_PLACED], ranks_of[MOST_PLACED]; /* [rank], [host] */
};

/* Numbers the hosts in the order of their lowest ranks, as the tree expects. */
static void place(struct placement *p, int size, const int *key) {
    int number[MOST_PLACED];
    *p = (struct placement){.size = size};
    for (int i = 0; i < MOST_PLACED; i++) number[i] = -1;
    for (int r = 0; r < size; r++) {
        if (number[key[r]] < 0) number[key[r]] = p->hosts++;
        p->host_of[r] = number[key[r]];
        p->ranks_of[p->host_of[r]]++;
    }
}

/* Counts how often each rank receives a message that starts at rank 0, and the longest path. */
static void spread(const struct tree *trees, int rank, int hops, int *heard, int *farthest) {
    heard[rank]++;
    if (hops > *farthest) *farthest = hops;
    if (heard[rank] > 1) return;
    for (int i = 0; i < trees[rank].nchildren; i++) {
        int child = trees[rank].children[i];
        CHECK(trees[child].above[rank]);
        spread(trees, child, hops + 1, heard, farthest);
    }
}

static int log_up(int hosts) {
    int hops = 0;
    for (long reached = 1, level = 1; reached < hosts; hops++) reached += level *= TREE_BRANCHES;
    return hops;
}

/* Checks that all ranks know the same branches: a branch is a rank and all ranks below it. */
static void check_branches(const struct placement *p, const struct tree *tree) {
    for (int top = 0; top < p->size; top++) {
        int many = 0;
        for (int r = 0; r < p->size; r++) {
            bool below = r == top;
            for (int at = r; at > top && !below;) below = (at = tree->parents[at]) == top;
            CHECK_INT(tree_check(tree, top, r, ERR), below ? HVD_OK : HVD_INTERNAL);
            many += below;
        }
        CHECK_INT(tree->many[top], many);
        CHECK_INT(tree->ranks[tree->at[top]], top);
    }
    CHECK_INT(tree_check(tree, 0, -1, ERR), HVD_INTERNAL);
    CHECK_INT(tree_check(tree, 0, p->size, ERR), HVD_INTERNAL);
}

static void check_placement(const struct placement *p) {
    static struct tree trees[MOST_PLACED];
    static int heard[MOST_PLACED];
    int farthest = 0;
    memset(heard, 0, sizeof heard);
    for (int r = 0; r < p->size; r++) OK(tree_open(&trees[r], r, p->size, p->host_of, ERR));
    spread(trees, 0, 0, heard, &farthest);
    for (int r = 0; r < p->size; r++) {
        CHECK_INT(heard[r], 1);
        CHECK(!trees[r].above[r] && (r == 0 || trees[r].above[0]));
        CHECK(trees[r].nchildren < p->ranks_of[p->host_of[r]] + TREE_BRANCHES);
    }
    CHECK(farthest <= log_up(p->hosts) + 1);
    check_branches(p, &trees[0]);
    for (int r = 0; r < p->size; r++) tree_close(&trees[r]);
}

TEST(test_a_decision_reaches_every_rank_once_however_ranks_are_placed) {
    static struct placement p;
    uint64_t random = 7;
    int key[MOST_PLACED];
    for (int i = 0; i < 60; i++) {
        size_t hosts =
            i ? 1 + random_below(&random, 99) : MOST_PLACED; /* makes a tree of four levels */
        int size = i ? 1 + (int)random_below(&random, 99) : MOST_PLACED;
        for (int r = 0; r < size; r++) key[r] = (int)random_below(&random, hosts);
        place(&p, size, key);
        check_placement(&p);
    }
}
