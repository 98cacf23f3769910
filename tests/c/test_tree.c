/* The tree: decisions reach every rank once, and no rank sends many of them. */
#include "check.h"

#include "negotiation/tree.h"
#include "random.h"

enum { MOST = 600 };

struct placement {
    int size, hosts;
    int host_of[MOST], ranks_of[MOST]; /* [rank], [host] */
};

/* Hosts are numbered in the order of their lowest ranks, as the tree expects. */
static void place(struct placement *p, int size, const int *key) {
    int number[MOST];
    *p = (struct placement){.size = size};
    for (int i = 0; i < MOST; i++) number[i] = -1;
    for (int r = 0; r < size; r++) {
        if (number[key[r]] < 0) number[key[r]] = p->hosts++;
        p->host_of[r] = number[key[r]];
        p->ranks_of[p->host_of[r]]++;
    }
}

/* How often each rank hears what rank 0 says, and after how many hops. */
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

/* All know the same branches: those of a rank's children and itself make up its own. */
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
    static struct tree trees[MOST];
    static int heard[MOST];
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

TEST(test_any_placement) {
    static struct placement p;
    uint64_t random = 7;
    int key[MOST];
    for (int i = 0; i < 60; i++) {
        size_t hosts = i ? 1 + random_below(&random, 99) : MOST; /* three levels below rank 0 */
        int size = i ? 1 + (int)random_below(&random, 99) : MOST;
        for (int r = 0; r < size; r++) key[r] = (int)random_below(&random, hosts);
        place(&p, size, key);
        check_placement(&p);
    }
}
