/* Which allreduce or broadcast by messages is the cheapest, by what a message costs on the comm.
 *
 * b(m) is what the bytes of a message take, q = ceil(log2 p). All numbers are measured when the job
 * starts (pace.h):
 *
 *   doubling    q (a + f b(S)), f b(S) once more where p is no power of two
 *   circulant   a + f b(m) for each message: twice about S/2, S/4, ... S/p
 *   ring        2(p-1) times the longest of a chunk's segments, one behind the other, on the link
 *               or at a core, and one segment's way to the next rank but one
 *
 * f is how many times as long bytes take where all send as far, one step after the other: racks
 * share links, ranks that come late meet others' bytes, and nothing hides additions and copies. On
 * 8 emulated hosts with two cores f was 1.25.
 *
 * Up to 4 KiB go by doubling in any case: engine/fast_hosts.c saves the negotiation then.
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

/* What the bytes of one message between neighbours take, besides its alpha. */
double coll_bytes_seconds(struct cost cost, size_t segment, double bytes);

/* Of a chain: the length that makes (p - 2 + n) (a + S/n b) the least for n segments of S bytes,
 * sqrt(S a / ((p-2) b)), but no longer than the pace's. */
size_t coll_chain_segment(const struct comm *comm, size_t bytes);

/* A broadcast: ceil(log2 p) (a + f b(S)), or the chain. */
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
 * more and more segments, until they take some ms; then it sends as far as the circulant does. All
 * ranks agree on the slowest rank's times, so all of them choose alike. On one host nothing is
 * measured, and nothing sent. */
int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err);

#endif
