/* The tree between rank 0 and all others: rank 0 over the leaders of hosts, each leader, the lowest
 * rank of its host, over its host and over more leaders.
 *
 * Decisions go down, and what ranks submit goes up. So rank 0 talks to its host and to
 * TREE_BRANCHES leaders, however many ranks there are. With two ranks on each of 20 hosts,
 * TREE_BRANCHES 16:
 *
 *     0 -> 1, 2, 4, ..., 32        2 -> 3, 34, 36, 38        4 -> 5        34 -> 35
 *
 * On one host, every rank is a child of rank 0. A branch: a rank and all below it. Pure. */
#ifndef HVDLITE_NEGOTIATION_TREE_H
#define HVDLITE_NEGOTIATION_TREE_H

#include "base/error.h"

enum { TREE_BRANCHES = 16 };

/* Zeroed: closed. */
struct tree {
    int rank, size;
    int *parents;  /* [rank], always a lower one; -1: it is rank 0 */
    int *children; /* in order */
    int nchildren;
    bool *above;    /* [rank]: between rank 0 and this one, or rank 0 */
    int *ranks;     /* [size]: those of a branch follow each other, its top first */
    int *at, *many; /* [rank]: where its branch begins there, and how many ranks it has */
};

/* host_of: [size]: hosts, numbered in the order of their lowest ranks. */
int tree_open(struct tree *tree, int rank, int size, const int *host_of, hvd_error *err);
void tree_close(struct tree *tree);

/* Fails unless the rank, as a message may have it, is of the branch of `top`. */
int tree_check(const struct tree *tree, int top, int rank, hvd_error *err);

#endif
