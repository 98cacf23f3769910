/* Pace and cost of a comm: how long a segment is, and how many are in flight in each direction.
 *
 * A message that its MPI sends at once costs no handshake; with a longer one a request and its
 * answer wait behind data that is queued in the sockets. Open MPI sends up to 64 KiB at once by
 * TCP, its header included. ms of an allreduce of float32, medians, two cores for all hosts, Open
 * MPI 5.0.11, by segment x segments in flight:
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

#include <stddef.h>

struct pace {
    size_t segment; /* bytes, a multiple of PACE_UNIT */
    size_t depth;   /* segments in flight, at most PACE_MOST_DEPTH */
};

enum {
    PACE_UNIT = 64, /* a cache line holds whole elements of every dtype */
    PACE_MOST_DEPTH = 64,
    PACE_SEGMENT = 60 * 1024, /* unless the user sets another */
};

static const struct pace PACE_DEFAULT = {PACE_SEGMENT, 16};

/* What a message between two ranks costs, in seconds. The same on all ranks, which must choose
 * the same algorithm. Bytes of later segments cost less: a core handles one segment while the
 * next one is on the link. */
enum { COST_FEW = 4, COST_MANY = 8 };

struct cost {
    double alpha; /* cost of a message, apart from its bytes */
    double first; /* cost of a byte of the first segment, */
    double next;  /* cost of a byte of the next segments up to COST_FEW, */
    double beta;  /* and of a byte of all later segments */
    /* of one more message in a long stream, as a fraction of a whole segment's cost there */
    double message;
    /* factor >= 1 for bytes in algorithms with few steps, which send to far ranks, add and copy */
    double far;
};

/* A cost in which all bytes cost the same. */
#define COST_OF(a, b, f) {.alpha = (a), .first = (b), .next = (b), .beta = (b), .far = (f)}

/* Between ranks of one host through MPI, where no cost is measured. */
static const struct cost COST_ON_A_HOST = COST_OF(5e-6, 0.3e-9, 1);

/* Between hosts, for choices of algorithms that do not change from run to run. */
static const struct cost COST_FIXED = COST_OF(100e-6, 10e-9, 1);

#endif
