/* Chooses the cheapest allreduce or broadcast by messages, given the cost of a message on the comm.
 *
 * a is the time of an empty message, b(m) the time of m bytes, S the bytes of the data on p ranks,
 * and q = ceil(log2 p). Costs between hosts are measured when the job starts, unless cost.h has
 * constants for them. An allreduce costs:
 *
 *   doubling    q (a + f b(S)), and f b(S) once more if p is not a power of two
 *   circulant   a + f b(m) for each message: two messages each of about S/2, S/4, ... S/p
 *   ring        2(p-1) steps, each as long as the longer of these: all segments of a chunk, or the
 *               first segment from a rank to the next rank
 *
 * f is the factor by which bytes take longer if all ranks send to distant ranks in each step: racks
 * share links, bytes for late ranks collide with other bytes, and additions and copies do not
 * overlap with sending. On 8 emulated hosts with two cores f was 1.25.
 *
 * Up to 4 KiB doubling is always chosen, because engine/fast_hosts.c then needs no negotiation.
 * Doubling sends sums in the accumulator's dtype; the circulant does so in half of its steps. On 2
 * and 3 ranks the circulant saves no step. docs/scaling.md shows the choices in simulated
 * clusters. */
#ifndef HVDLITE_COLLECTIVES_COSTS_H
#define HVDLITE_COLLECTIVES_COSTS_H

#include "kernels/reduce.h"
#include "transport/comm.h"

enum coll_cheap { COLL_DOUBLING, COLL_CIRCULANT, COLL_RING };

/* Returns the cheapest algorithm for an allreduce of `bytes`; equal on all ranks. */
enum coll_cheap coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                              size_t bytes);

/* Returns the seconds of a message between neighbors minus the seconds of an empty message. */
double coll_bytes_seconds(struct cost cost, size_t segment, double bytes);

/* Returns the bytes of a segment of a pipelined chain, at most struct pace's segment. If a message
 * of m bytes takes a + m b seconds, S bytes in n segments take (p - 2 + n) (a + S/n b) seconds.
 * Segments of sqrt(S a / ((p-2) b)) bytes minimize this time. */
size_t coll_chain_segment(const struct comm *comm, size_t bytes);

/* Returns whether a broadcast by a tree, which costs ceil(log2 p) (a + f b(S)), is cheaper than a
 * chain. */
bool coll_tree_is_cheaper(const struct comm *comm, size_t bytes);

/* Returns how many segments must be in flight between two ranks to keep the link busy. */
size_t coll_depth(struct cost cost, size_t segment);

/* Like coll_depth, for algorithms whose next message goes to another rank. Returns no more segments
 * than needed, because segments that are sent ahead compete with the segment for which the receiver
 * waits: in `make sim`, a circulant of 4 MB on 64 hosts of 10 Gbit/s took 9.0 ms with 16 segments
 * ahead, and 7.3 ms with 2. */
size_t coll_exchange_depth(const struct comm *comm);

/* Returns a power of two, the maximum bytes for which doubling is chosen for every floating-point
 * dtype. */
size_t coll_doubling_bytes(const struct comm *comm);

/* Collective, when a job starts: measures the cost of a message between hosts, in about 10 ms. One
 * rank of each host exchanges messages with other hosts: first messages of 1 byte; then more and
 * more segments, until a trial takes some ms; then messages to hosts as distant as in circulant.c.
 * All ranks use the slowest rank's times, so they choose the same algorithms. On one host nothing
 * is measured. If a rank is short of memory, the costs are COST_FIXED. */
int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err);

#endif
