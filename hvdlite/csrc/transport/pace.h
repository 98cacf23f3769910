/* The numbers by which collectives choose and cut their messages.
 *
 * The pace is the length of a segment and the number of segments in flight in each direction. MPI
 * sends a short message immediately. For a longer message MPI first sends a request, and the
 * request and its answer wait behind data that is queued in the sockets. Over TCP, Open MPI sends
 * up to 64 KiB immediately, header included. Times of a float32 allreduce in ms (medians; two cores
 * for all hosts; Open MPI 5.0.11) by segment length x segments in flight:
 *
 *                          256 KiB x 4   30 KiB x 32   60 KiB x 16   60 KiB x 32
 *   2 hosts, 200 Mbit/s, 40 MB    2432          1722          1706
 *   4 hosts, 200 Mbit/s, 40 MB    2928          2629          2573          2671
 *   4 hosts, 200 Mbit/s, 1 MB       96            71            72            71
 *   2 hosts, 1 Gbit/s, 40 MB       603           537           490           421
 *   4 hosts, 1 Gbit/s, 10 MB       352           514           325           381
 *   2 hosts, no limit, 64 MiB       76            61            49            50
 *   1 host, 4 ranks, 16 MB          16.1          16.0          15.1 */
#ifndef HVDLITE_TRANSPORT_PACE_H
#define HVDLITE_TRANSPORT_PACE_H

#include "base/options.h"

#include <stddef.h>

struct pace {
    size_t segment; /* bytes, a multiple of PACE_UNIT */
    size_t depth;   /* segments in flight, at most PACE_MOST_DEPTH */
};

enum { PACE_UNIT = 64 }; /* a cache line, so a multiple of every element's size */

static const struct pace PACE_DEFAULT = {PACE_SEGMENT, 16};

/* The cost of a message between two ranks, in seconds; equal on all ranks, because all ranks must
 * choose the same algorithm. A message of several segments costs less per byte, because a core
 * handles one segment while the next segment is on the link. */
enum { COST_FEW = 4, COST_MANY = 8 };

struct cost {
    double alpha; /* per message, without its bytes */
    double first; /* per byte of the first segment */
    double next;  /* per byte of the following segments, up to COST_FEW */
    double beta;  /* per byte of all later segments */
    /* 0 to 1: the part of a segment's cost that does not depend on the segment's length */
    double message;
    /* >= 1: factor for the cost of bytes in algorithms with few steps, which send to distant ranks,
     * and neither add nor copy while they send */
    double far;
};

/* A cost in which every byte costs the same. */
#define COST_OF(a, b, f) {.alpha = (a), .first = (b), .next = (b), .beta = (b), .far = (f)}

/* For messages through MPI between ranks of one host, where nothing is measured. */
static const struct cost COST_ON_A_HOST = COST_OF(5e-6, 0.3e-9, 1);

/* For messages between hosts, if the choice of algorithms must not change from run to run. */
static const struct cost COST_FIXED = COST_OF(100e-6, 10e-9, 1);

#endif
