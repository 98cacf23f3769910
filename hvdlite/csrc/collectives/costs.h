/* Which allreduce or broadcast by messages is the cheapest, by what a message costs on the comm.
 *
 * q = ceil(log2 p). All three numbers are measured when the job starts:
 *
 *   doubling    q (a + S f)
 *   circulant   2 q a + 2(p-1)/p S f
 *   ring        2(p-1) (a + S/p b), pairwise as well; where a chunk is several segments, a overlaps
 *
 * f is b where all send as far, one step after the other, as the first two do: there racks share
 * links, ranks that come late meet others' bytes, and nothing hides the additions. On 8 emulated
 * hosts with two cores, 200 Mbit/s, b was 48.5 ns and f 60.9; 256 KB took 46, 31 and 24 ms, where
 * these formulas say 47, 28 and 23.
 *
 * Up to 4 KiB go by doubling in any case: engine/express_hosts.c saves the negotiation then.
 * Doubling sends sums in the accumulator's dtype, the circulant does on half of its way. On 2 and 3
 * ranks the circulant saves no step. docs/scaling.md: what is chosen in simulated clusters. */
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

/* How many segments are in flight between two ranks, so that the link is never idle. */
size_t coll_depth(struct cost cost, size_t segment);

/* The same where the next message goes elsewhere: no more than is needed, as what a rank sends
 * ahead competes with what its receiver waits for. 4 MB by the circulant on 64 simulated hosts of
 * 10 Gbit/s took 9.0 ms with 16 segments ahead, 7.3 with 2. */
size_t coll_exchange_depth(const struct comm *comm);

/* Up to so many bytes of any floating-point dtype, a power of two, go by doubling. */
size_t coll_doubling_bytes(const struct comm *comm);

/* Collective, when a job starts: measures, in some 10 ms, what a message between hosts costs. One
 * rank of each host exchanges a few messages with those of the next hosts: 1 byte for alpha, then
 * longer and longer ones, until one takes some ms, for beta; then it sends as far as the circulant
 * does. All ranks agree on the slowest rank's times, so all of them choose alike. On one host
 * nothing is measured, and nothing sent. */
int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err);

#endif
