/* The pace: the length of a segment, and the number of segments in flight in each direction.
 *
 * MPI sends a short message immediately. For a longer message MPI first sends a request, and the
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

#endif
