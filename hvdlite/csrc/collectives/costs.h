/* Which allreduce or broadcast by messages is the cheapest, by what a message costs on the comm.
 *
 * q = ceil(log2 p). The seconds are those in the algorithms' files, with one exception: doubling
 * and the circulant send to another rank in each step, and a link that was idle takes longer.
 * Measured at 200 Mbit/s, ms of 256 KiB by doubling, circulant and ring: 22.7, 18.2, 16.9 on 4
 * hosts, 61.7, 33.4, 21.3 on 8 (two cores for all): 1.1 and 2 times as long. Between them:
 *
 *   doubling    q (a + 1.5 S b)
 *   circulant   2 q a + 1.5 2(p-1)/p S b
 *   ring        2(p-1) a + 2(p-1)/p S b, pairwise as well
 *
 * Doubling sends sums in the accumulator's dtype, the circulant does on half of its way. So the
 * circulant takes over from doubling at some 1.6 a/b on 8 ranks and 1.0 a/b on 64, and the ring
 * from the circulant at 9 a/b and 116 a/b. On 2 and 3 ranks the circulant saves no step. */
#ifndef HVDLITE_COLLECTIVES_COSTS_H
#define HVDLITE_COLLECTIVES_COSTS_H

#include "kernels/reduce.h"
#include "transport/comm.h"

enum coll_cheap { COLL_DOUBLING, COLL_CIRCULANT, COLL_RING };

/* Of an allreduce of so many bytes; equal on all ranks. */
enum coll_cheap coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                              size_t bytes);

/* Of a chain: the length that makes (p - 2 + n) (a + S/n b) the least for n segments of S bytes,
 * sqrt(S a / ((p-2) b)), but no longer than the pace's. */
size_t coll_chain_segment(const struct comm *comm, size_t bytes);

/* A broadcast: ceil(log2 p) (a + 1.5 S b), since each step begins on idle links, or the chain. */
bool coll_tree_is_cheaper(const struct comm *comm, size_t bytes);

/* How many segments must be in flight so that the link is never idle: an acknowledgement takes two
 * messages' time, and as much again is on its way in the meantime. */
size_t coll_depth(struct cost cost, size_t segment);

/* Up to so many bytes of any floating-point dtype, a power of two, go by doubling. */
size_t coll_doubling_bytes(const struct comm *comm);

/* Collective, when a job starts: measures, in some 10 ms, what a message between hosts costs. One
 * rank of each host exchanges a few messages with those of the next hosts: 1 byte for alpha, then
 * longer and longer ones, until one takes some ms, for beta. All ranks agree on the slowest rank's
 * times, so all of them choose alike. On one host nothing is measured, and nothing sent. */
int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err);

#endif
