/* The tree by which decisions spread: from rank 0 to the leaders of hosts, from each leader, the
 * lowest rank of its host, to its host and to more leaders.
 *
 * So rank 0 sends to its host and to TREE_BRANCHES leaders, however many ranks there are. With two
 * ranks on each of 20 hosts, TREE_BRANCHES 16:
 *
 *     0 -> 1, 2, 4, ..., 32        2 -> 3, 34, 36, 38        4 -> 5        34 -> 35
 *
 * On one host, every rank is a child of rank 0. Pure. */
#ifndef HVDLITE_NEGOTIATION_TREE_H
#define HVDLITE_NEGOTIATION_TREE_H

#include "base/error.h"

#include <stdbool.h>

enum { TREE_BRANCHES = 16 };

/* Zeroed: closed. */
struct tree {
    int *children; /* to which this rank passes decisions on, in order */
    int nchildren;
    bool *above; /* [rank]: decisions pass it on their way to this rank */
};

/* host_of: [size]: hosts, numbered in the order of their lowest ranks. */
int tree_open(struct tree *tree, int rank, int size, const int *host_of, hvd_error *err);
void tree_close(struct tree *tree);

#endif
