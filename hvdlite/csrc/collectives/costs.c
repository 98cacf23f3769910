#include "collectives/costs.h"

#include <math.h>

enum {
    SMALL = 4 << 10,   /* bytes; costs.h */
    LEAST_LINK = 1024, /* bytes of a chain's segment, where messages seem to cost nothing */
};

static double log_steps(int size) {
    double steps = 0;
    for (int reached = 1; reached < size; reached *= 2) steps++;
    return steps;
}

/* A chunk goes in n equal segments. One of the next step follows when the link is free and the same
 * one of this step has arrived; the last step's others arrive behind its first. */
static double ring_seconds(const struct comm *comm, double bytes) {
    struct cost c = comm_cost(comm);
    double chunk = bytes / comm->size, n = fmax(ceil(chunk / (double)comm_pace(comm).segment), 1);
    double link = c.beta * chunk, segment = link / n;
    return 2 * (comm->size - 1) * fmax(link, c.alpha + segment) + fmin(c.alpha, link - segment);
}

enum coll_cheap coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                              size_t bytes) {
    struct cost c = comm_cost(comm);
    double p = comm->size, q = log_steps(comm->size), all = (double)bytes;
    double part = all * (p - 1) / p;
    double wider = (double)kernels->wide / (double)kernels->size;
    double doubling = q * (c.alpha + c.far * all * wider);
    double circulant = 2 * q * c.alpha + c.far * part * (wider + 1);
    double ring = ring_seconds(comm, all);
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
           tree = log_steps(comm->size) * (c.alpha + c.far * (double)bytes),
           longest = (double)(bytes < segment ? bytes : segment);
    return tree <= messages * (c.alpha + c.beta * longest);
}

/* So that the link is never idle: an acknowledgement takes two messages' time, and as much again is
 * on its way in the meantime. */
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
