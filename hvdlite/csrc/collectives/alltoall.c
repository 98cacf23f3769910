/* Alltoall by messages: pairwise steps.
 *
 * In step d rank r sends to rank r + d and receives from rank r - d (mod p). So in each step a rank
 * sends one part and receives one part, and no two ranks use the same link. p = 4, what rank a
 * sends and receives (ab is a's part for b):
 *
 *   step 1   ab -> b, da <- d
 *   step 2   ac -> c, ca <- c
 *   step 3   ad -> d, ba <- b
 *
 * Parts travel in segments. Every step has as many segments as the longest part of any rank; the
 * last segments of shorter parts are empty. The segments of a step overlap with the segments of the
 * next step.
 *
 * Cost for equal parts: (p-1) a + (p-1)/p S b (see coll.h), S = all parts of a rank. An alltoall in
 * two levels, which copies each part three times and sends all parts between two hosts in one
 * message, was no faster for 8 ranks on 2 or 4 hosts with links of 1 Gbit/s: it took as long for
 * parts of 64 B to 4 KB, and 1.3 to 1.8 times as long for parts of 16 KB. */
#include "collectives/algorithm.h"

static size_t begin_of(const size_t *end, int rank) { return coll_part(end, rank).begin; }

const char *coll_part_for(const struct coll_args *args, int rank, size_t at) {
    if (!args->listed) return (const char *)args->in + at;
    return ((const char *const *)args->in)[rank] + (at - begin_of(args->in_end, rank));
}

char *coll_part_from(const struct coll_args *args, int rank, size_t at) {
    if (!args->listed) return (char *)args->data + at;
    return ((char *const *)args->data)[rank] + (at - begin_of(args->part_end, rank));
}

void coll_copy_own_part(const struct comm *comm, const struct coll_args *args) {
    struct coll_range from = coll_part(args->in_end, comm->rank),
                      to = coll_part(args->part_end, comm->rank);
    if (coll_length(to) && !args->listed)
        coll_copy(comm, (char *)args->data + to.begin, (const char *)args->in + from.begin,
                  coll_length(to));
}

struct alltoall {
    const struct coll_args *args;
    int rank, size;
    size_t segment, nseg; /* bytes of a segment; number of segments in a step */
};

static struct coll_exchange item_of(const void *arg, size_t i) {
    const struct alltoall *w = arg;
    int d = 1 + (int)(i / w->nseg), to = (w->rank + d) % w->size,
        from = (w->rank + w->size - d) % w->size;
    size_t k = i % w->nseg;
    struct coll_range out = coll_segment(coll_part(w->args->in_end, to), w->segment, k);
    struct coll_range in = coll_segment(coll_part(w->args->part_end, from), w->segment, k);
    return (struct coll_exchange){coll_part_for(w->args, to, out.begin),
                                  coll_part_from(w->args, from, in.begin),
                                  coll_length(out),
                                  coll_length(in),
                                  to,
                                  from};
}

int coll_alltoall(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct pace pace = comm_pace(comm);
    struct alltoall w = {
        .args = args, .rank = comm->rank, .size = comm->size, .segment = pace.segment};
    coll_copy_own_part(comm, args);
    w.nseg = coll_segments(args->longest, w.segment);
    struct coll_pipeline p = {.items = w.nseg * (size_t)(w.size - 1),
                              .item = item_of,
                              .arg = &w,
                              .depth = pace.depth,
                              .send_ahead = pace.depth};
    return coll_pipeline(comm, &p, err);
}
