#include "negotiation/tree.h"

#include <stdlib.h>

/* Returns the parent of a rank; -1 for rank 0. leaders: by host, the host's lowest rank. */
static int parent_of(int rank, const int *host_of, const int *leaders) {
    int host = host_of[rank];
    if (rank != leaders[host]) return leaders[host];
    return host ? leaders[(host - 1) / TREE_BRANCHES] : -1;
}

/* Computes `ranks`, `at` and `many`. next[r] (scratch memory): the index in `ranks` at which the
 * branch of rank r's next child begins. */
static void number_ranks(struct tree *tree, int *next) {
    for (int r = tree->size - 1; r >= 0; r--) {
        tree->many[r]++;
        if (r) tree->many[tree->parents[r]] += tree->many[r];
    }
    for (int r = 0; r < tree->size; r++) {
        int at = r ? next[tree->parents[r]] : 0;
        if (r) next[tree->parents[r]] += tree->many[r];
        tree->at[r] = at;
        tree->ranks[at] = r;
        next[r] = at + 1;
    }
}

int tree_open(struct tree *tree, int rank, int size, const int *host_of, hvd_error *err) {
    size_t n = (size_t)size;
    int *arrays = calloc(n, 6 * sizeof(int) + sizeof(bool));
    *tree = (struct tree){.rank = rank, .size = size, .parents = arrays};
    if (!arrays) return error_set(err, HVD_NO_MEMORY, "no memory for a tree of %d ranks", size);
    tree->children = arrays + n;
    tree->ranks = arrays + 2 * n;
    tree->at = arrays + 3 * n;
    tree->many = arrays + 4 * n;
    int *leaders = arrays + 5 * n;
    tree->above = (bool *)(arrays + 6 * n);
    for (int r = size - 1; r >= 0; r--) leaders[host_of[r]] = r;
    for (int r = 0; r < size; r++) {
        tree->parents[r] = parent_of(r, host_of, leaders);
        if (tree->parents[r] == rank) tree->children[tree->nchildren++] = r;
    }
    for (int r = rank; (r = tree->parents[r]) >= 0;) tree->above[r] = true;
    /* `leaders` is not needed any more, so number_ranks uses its memory as scratch */
    number_ranks(tree, leaders);
    return HVD_OK;
}

void tree_close(struct tree *tree) {
    free(tree->parents); /* `parents` is the beginning of one block with all arrays */
    *tree = (struct tree){0};
}

int tree_check(const struct tree *tree, int top, int rank, hvd_error *err) {
    bool known = rank >= 0 && rank < tree->size;
    int at = known ? tree->at[rank] - tree->at[top] : -1;
    if (at >= 0 && at < tree->many[top]) return HVD_OK;
    return error_set(err, HVD_INTERNAL,
                     "rank %d sent a request of rank %d, which it may not send: report this bug",
                     top, rank);
}
