/* The tree of the negotiation: rank 0 is above leaders, the lowest ranks of hosts; each leader is
 * above the ranks of its host and above more leaders.
 *
 * Requests go up and decisions go down the tree. So rank 0 talks only to its host and to
 * TREE_BRANCHES leaders, however many ranks there are. With two ranks on each of 20 hosts,
 * TREE_BRANCHES 16:
 *
 *     0 -> 1, 2, 4, ..., 32        2 -> 3, 34, 36, 38        4 -> 5        34 -> 35
 *
 * On one host, every rank is a child of rank 0. A branch is a rank and all ranks below it. Pure. */
#ifndef HVDLITE_NEGOTIATION_TREE_H
#define HVDLITE_NEGOTIATION_TREE_H

#include "base/error.h"

enum { TREE_BRANCHES = 16 };

/* A zeroed tree is closed. */
struct tree {
    int rank, size;
    int *parents;  /* by rank: the rank's parent, which is a lower rank; -1 for rank 0 */
    int *children; /* children of this rank, in rising order */
    int nchildren;
    bool *above;    /* by rank: true if the rank is an ancestor of this rank */
    int *ranks;     /* array of size: all ranks; those of a branch are consecutive, its top first */
    int *at, *many; /* by rank: where its branch begins in `ranks`, and its size */
};

/* host_of: [size]: hosts, numbered in the order of their lowest ranks. */
int tree_open(struct tree *tree, int rank, int size, const int *host_of, hvd_error *err);
void tree_close(struct tree *tree);

/* Fails unless the rank, which comes from a message, is in the branch of `top`. */
int tree_check(const struct tree *tree, int top, int rank, hvd_error *err);

#endif
