/* Which allreduce or broadcast by messages is the cheapest, by what a message costs on the comm.
 *
 * q = ceil(log2 p). The seconds are those in the algorithms' files, with one exception: doubling
 * and the circulant send to another rank in each step, mostly to one far away. Racks may share
 * links there, which is measured; a link that was idle takes longer, and nothing overlaps: ms of
 * 256 KiB at 200 Mbit/s by doubling, circulant and ring: 22.7, 18.2, 16.9 on 4 hosts, 61.7, 33.4,
 * 21.3 on 8 (two cores for all), 1.1 and 2 times as long. So a byte costs f >= 1.5 b:
 *
 *   doubling    q (a + S f)
 *   circulant   2 q a + 2(p-1)/p S f
 *   ring        2(p-1) a + 2(p-1)/p S b, pairwise as well
 *
 * Up to 4 KiB go by doubling in any case: engine/express_hosts.c saves the negotiation then.
 * Doubling sends sums in the accumulator's dtype, the circulant does on half of its way. On 2 and 3
 * ranks the circulant saves no step. The choice is within 5 % of the best of the three in 212 of 216
 * simulated clusters (docs/scaling.md). */
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

/* A broadcast: ceil(log2 p) (a + S f), or the chain. */
bool coll_tree_is_cheaper(const struct comm *comm, size_t bytes);

/* How many segments must be in flight so that the link is never idle: an acknowledgement takes two
 * messages' time, and as much again is on its way in the meantime. */
size_t coll_depth(struct cost cost, size_t segment);

/* Up to so many bytes of any floating-point dtype, a power of two, go by doubling. */
size_t coll_doubling_bytes(const struct comm *comm);

/* Collective, when a job starts: measures, in some 10 ms, what a message between hosts costs. One
 * rank of each host exchanges a few messages with those of the next hosts: 1 byte for alpha, then
 * longer and longer ones, until one takes some ms, for beta; the same to
 * the hosts that are the farthest, all at once. All ranks agree on the slowest rank's
 * times, so all of them choose alike. On one host nothing is measured, and nothing sent. */
int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err);

#endif
