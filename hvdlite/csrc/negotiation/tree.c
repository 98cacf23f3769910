#include "negotiation/tree.h"

#include <stdlib.h>

/* leaders: [host]. */
static int parent_of(int rank, const int *host_of, const int *leaders) {
    int host = host_of[rank];
    if (rank != leaders[host]) return leaders[host];
    return host ? leaders[(host - 1) / TREE_BRANCHES] : -1;
}

/* Numbers the ranks so that those of a branch follow each other. next: [size], scratch: where the
 * next child's branch begins. */
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

static bool allocate(struct tree *tree) {
    size_t n = (size_t)tree->size;
    tree->parents = calloc(n, sizeof *tree->parents);
    tree->children = calloc(n, sizeof *tree->children);
    tree->above = calloc(n, sizeof *tree->above);
    tree->ranks = calloc(n, sizeof *tree->ranks);
    tree->at = calloc(n, sizeof *tree->at);
    tree->many = calloc(n, sizeof *tree->many);
    return tree->parents && tree->children && tree->above && tree->ranks && tree->at && tree->many;
}

int tree_open(struct tree *tree, int rank, int size, const int *host_of, hvd_error *err) {
    *tree = (struct tree){.rank = rank, .size = size};
    int *leaders = calloc((size_t)size, sizeof *leaders);
    if (!leaders || !allocate(tree)) {
        free(leaders);
        tree_close(tree);
        return error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", size);
    }
    for (int r = size - 1; r >= 0; r--) leaders[host_of[r]] = r;
    for (int r = 0; r < size; r++) {
        tree->parents[r] = parent_of(r, host_of, leaders);
        if (tree->parents[r] == rank) tree->children[tree->nchildren++] = r;
    }
    for (int r = rank; (r = tree->parents[r]) >= 0;) tree->above[r] = true;
    number_ranks(tree, leaders); /* their use is over */
    free(leaders);
    return HVD_OK;
}

void tree_close(struct tree *tree) {
    free(tree->parents);
    free(tree->children);
    free(tree->above);
    free(tree->ranks);
    free(tree->at);
    free(tree->many);
    *tree = (struct tree){0};
}

int tree_check(const struct tree *tree, int top, int rank, hvd_error *err) {
    bool known = rank >= 0 && rank < tree->size;
    int at = known ? tree->at[rank] - tree->at[top] : -1;
    if (at >= 0 && at < tree->many[top]) return HVD_OK;
    return error_set(err, HVD_INTERNAL, "rank %d reports for rank %d, which is not below it", top,
                     rank);
}
