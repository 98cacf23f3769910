#include "collectives/costs.h"

#include <math.h>

enum {
    SMALL = 4 << 10, /* bytes up to which doubling is always chosen, see costs.h */
    /* minimum bytes of a chain's segment, in case messages seem to cost nothing */
    LEAST_LINK = 1024,
};

/* A ring is chosen up to an estimated time of TIE times the time of other algorithms, because a
 * ring copies nothing and adds while it sends. */
static const double TIE = 1.01;

static double log_steps(int size) {
    double steps = 0;
    for (int reached = 1; reached < size; reached *= 2) steps++;
    return steps;
}

double coll_bytes_seconds(struct cost c, size_t segment, double bytes) {
    double one = (double)segment, few = COST_FEW * one;
    return c.first * fmin(bytes, one) + c.next * (fmin(fmax(bytes, one), few) - one) +
           c.beta * (fmax(bytes, few) - few);
}

/* Returns the seconds of `messages` empty messages, one after another, plus `times` times the
 * seconds of `bytes` bytes that go to a distant rank. */
static double seconds_of(const struct comm *comm, double messages, double times, double bytes) {
    struct cost c = comm_cost(comm);
    double moving = coll_bytes_seconds(c, comm_pace(comm).segment, bytes);
    return messages * c.alpha + times * c.far * moving;
}

/* If p is not a power of two, there is one step less than log_steps(p), but ranks fold before and
 * after the steps (algorithm.h), with one message each. One of these messages overlaps a step. */
static double doubling_seconds(const struct comm *comm, double bytes) {
    double steps = log_steps(comm->size), more = comm->size & (comm->size - 1) ? 1 : 0;
    return seconds_of(comm, steps, steps + more, bytes);
}

static double circulant_seconds(const struct comm *comm, double bytes, double wider) {
    double seconds = 0, block = bytes / comm->size;
    for (int d = comm->size, next; d > 1; d = next) {
        next = (d + 1) / 2;
        seconds += seconds_of(comm, 1, 1, wider * block * (d - next)) +
                   seconds_of(comm, 1, 1, block * (d - next));
    }
    return seconds;
}

/* A chunk has n equal segments. A segment can be sent when the same segment of the previous step
 * has arrived and the link, or a core, is free. In the last step the other segments arrive
 * immediately after the first. */
static double ring_seconds(const struct comm *comm, double bytes) {
    struct cost c = comm_cost(comm);
    double most = (double)comm_pace(comm).segment, chunk = bytes / comm->size;
    double n = fmax(ceil(chunk / most), 1), segment = chunk / n;
    double each = c.beta * (c.message * most + (1 - c.message) * segment);
    double alone = c.alpha + c.first * segment, step = fmax(n * each, alone);
    return 2 * (comm->size - 1) * step + fmin(n * each, alone) - each;
}

enum coll_cheap coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                              size_t bytes) {
    double wider = (double)kernels->wide / (double)kernels->size, all = (double)bytes;
    double doubling = doubling_seconds(comm, all * wider);
    double circulant = circulant_seconds(comm, all, wider), ring = ring_seconds(comm, all) / TIE;
    if (all * wider <= SMALL || (doubling <= circulant && doubling < ring)) return COLL_DOUBLING;
    return circulant < ring ? COLL_CIRCULANT : COLL_RING;
}

size_t coll_chain_segment(const struct comm *comm, size_t bytes) {
    struct cost c = comm_cost(comm);
    size_t most = comm_pace(comm).segment;
    if (comm->size <= 2) return most;
    double length = sqrt((double)bytes * c.alpha / (comm->size - 2) / c.beta);
    if (length >= (double)most) return most;
    return length > LEAST_LINK ? (size_t)length / PACE_UNIT * PACE_UNIT : LEAST_LINK;
}

bool coll_tree_is_cheaper(const struct comm *comm, size_t bytes) {
    struct cost c = comm_cost(comm);
    size_t segment = coll_chain_segment(comm, bytes);
    double messages = comm->size - 2 + (double)((bytes + segment - 1) / segment),
           tree = seconds_of(comm, log_steps(comm->size), log_steps(comm->size), (double)bytes),
           longest = (double)(bytes < segment ? bytes : segment);
    return tree <= messages * (c.alpha + c.beta * longest);
}

/* Returns how many segments in flight keep a link busy: twice the segments that the link carries
 * until an acknowledgment arrives. The acknowledgment takes as long as two messages. */
static double enough_in_flight(struct cost cost, size_t segment) {
    return 4 * cost.alpha / cost.beta / (double)segment;
}

size_t coll_depth(struct cost cost, size_t segment) {
    double depth = enough_in_flight(cost, segment);
    if (!(depth > (double)PACE_DEFAULT.depth)) return PACE_DEFAULT.depth;
    return depth < PACE_MOST_DEPTH ? (size_t)depth : PACE_MOST_DEPTH;
}

size_t coll_exchange_depth(const struct comm *comm) {
    struct pace pace = comm_pace(comm);
    double depth = enough_in_flight(comm_cost(comm), pace.segment);
    if (comm->hosts == 1 || !(depth < (double)pace.depth)) return pace.depth;
    return depth > 2 ? (size_t)depth : 2;
}

size_t coll_doubling_bytes(const struct comm *comm) {
    const struct reduce_kernels *widest = reduce_kernels(HVD_FLOAT16, HVD_SUM);
    size_t bytes = (size_t)1 << 30;
    while (bytes > 8 && coll_cheapest(comm, widest, bytes) != COLL_DOUBLING) bytes /= 2;
    return bytes;
}
