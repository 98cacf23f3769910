#include "negotiation/tree.h"

#include <stdlib.h>

/* The rank from which `rank` hears; -1: it is rank 0. leaders: [host]. */
static int parent_of(int rank, const int *host_of, const int *leaders) {
    int host = host_of[rank];
    if (rank != leaders[host]) return leaders[host];
    return host ? leaders[(host - 1) / TREE_BRANCHES] : -1;
}

int tree_open(struct tree *tree, int rank, int size, const int *host_of, hvd_error *err) {
    size_t n = (size_t)size;
    *tree = (struct tree){.children = calloc(n, sizeof *tree->children),
                          .above = calloc(n, sizeof *tree->above)};
    int *leaders = calloc(n, sizeof *leaders);
    if (!leaders || !tree->children || !tree->above) {
        free(leaders);
        tree_close(tree);
        return error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", size);
    }
    for (int r = size - 1; r >= 0; r--) leaders[host_of[r]] = r;
    for (int r = 0; r < size; r++)
        if (parent_of(r, host_of, leaders) == rank) tree->children[tree->nchildren++] = r;
    for (int r = rank; (r = parent_of(r, host_of, leaders)) >= 0;) tree->above[r] = true;
    free(leaders);
    return HVD_OK;
}

void tree_close(struct tree *tree) {
    free(tree->children);
    free(tree->above);
    *tree = (struct tree){0};
}
