/* The tree of the negotiation. Rank 0 is at the top. A leader is the lowest rank of a host; its
 * children are the other ranks of its host, and some other leaders.
 *
 * Requests go up the tree, and decisions go down. So rank 0 talks only to its host and to at most
 * TREE_BRANCHES leaders, for any number of ranks. Example with two ranks on each of 20 hosts and
 * TREE_BRANCHES 16:
 *
 *     0 -> 1, 2, 4, ..., 32        2 -> 3, 34, 36, 38        4 -> 5        34 -> 35
 *
 * On one host every rank is a child of rank 0. A branch is a rank and all ranks below this rank. */
#ifndef HVDLITE_NEGOTIATION_TREE_H
#define HVDLITE_NEGOTIATION_TREE_H

#include "base/error.h"

/* Chosen, not measured. With more branches, rank 0 handles more messages one after another. With
 * fewer branches, the tree is deeper, and each level adds the latency of a message. */
enum { TREE_BRANCHES = 16 };

/* tree_close accepts a zeroed struct. */
struct tree {
    int rank, size;
    int *parents;  /* by rank: the rank's parent, which is a lower rank; -1 for rank 0 */
    int *children; /* children of this rank, lowest first */
    int nchildren;
    bool *above; /* by rank: true if the rank is an ancestor of this rank */
    /* all ranks, sorted: the ranks of each branch are consecutive, the branch's top rank first */
    int *ranks;
    int *at;   /* by rank: index in `ranks` where the rank's branch begins */
    int *many; /* by rank: number of ranks in the rank's branch */
};

/* host_of: array of size, each rank's host; hosts are numbered in the order of their lowest
 * ranks. */
int tree_open(struct tree *tree, int rank, int size, const int *host_of, hvd_error *err);
void tree_close(struct tree *tree);

/* Fails unless `rank`, read from a message, is in the branch of `top`. */
int tree_check(const struct tree *tree, int top, int rank, hvd_error *err);

#endif
