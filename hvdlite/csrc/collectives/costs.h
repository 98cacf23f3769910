/* Chooses the cheapest allreduce or broadcast by messages, from the cost of a message on the comm.
 *
 * b(m) is the time of a message's bytes, q = ceil(log2 p). All costs are measured when the job
 * starts (pace.h):
 *
 *   doubling q (a + f b(S)), f b(S) once more where p is no power of two circulant a + f b(m)
 *   for each message: twice about S/2, S/4, ... S/p ring 2(p-1) times the longest of three: a
 *   chunk's segments one after another on the link; the same at a core; one segment's way to the
 *   next rank but one
 *
 * f is the factor by which bytes take longer if all ranks send far in each step: racks share links,
 * late ranks meet other ranks' bytes, and nothing hides additions and copies. On 8 emulated hosts
 * with two cores f was 1.25.
 *
 * Up to 4 KiB doubling is always chosen, because engine/fast_hosts.c then needs no negotiation.
 * Doubling sends sums in the accumulator's dtype, the circulant in half of its steps. On 2 and 3
 * ranks the circulant saves no step. docs/scaling.md shows the choices in simulated clusters. */
#ifndef HVDLITE_COLLECTIVES_COSTS_H
#define HVDLITE_COLLECTIVES_COSTS_H

#include "kernels/reduce.h"
#include "transport/comm.h"

enum coll_cheap { COLL_DOUBLING, COLL_CIRCULANT, COLL_RING };

/* The cheapest algorithm for an allreduce of `bytes`; equal on all ranks. */
enum coll_cheap coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                              size_t bytes);

/* Seconds of a message's bytes between neighbours, without its alpha. */
double coll_bytes_seconds(struct cost cost, size_t segment, double bytes);

/* The segment of a chain: the length sqrt(S a / ((p-2) b)), which minimises (p - 2 + n) (a + S/n b)
 * for n segments of S bytes, but no longer than the pace's segment. */
size_t coll_chain_segment(const struct comm *comm, size_t bytes);

/* Broadcast: a tree costs ceil(log2 p) (a + f b(S)), less than the chain. */
bool coll_tree_is_cheaper(const struct comm *comm, size_t bytes);

/* How many segments are in flight between two ranks, so that the link is never idle. */
size_t coll_depth(struct cost cost, size_t segment);

/* The same for algorithms whose next message goes to another rank. No more than needed, because
 * segments sent ahead compete with the segment that the receiver waits for. 4 MB by the
 * circulant on 64 simulated hosts with 10 Gbit/s took 9.0 ms with 16 segments ahead and 7.3 ms
 * with 2. */
size_t coll_exchange_depth(const struct comm *comm);

/* The largest power of two of bytes for which doubling is chosen for every floating-point dtype. */
size_t coll_doubling_bytes(const struct comm *comm);

/* Collective, when a job starts: measures the cost of a message between hosts, in some 10 ms. One
 * rank of each host exchanges messages with the next hosts: 1 byte for alpha, then more and more
 * segments until a trial takes some ms, then messages as far away as the circulant's. All ranks use
 * the slowest rank's times, so they choose alike. On one host nothing is measured or sent. */
int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err);

#endif
