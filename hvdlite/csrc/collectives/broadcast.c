/* Broadcasts by messages: a binomial tree for small data, where the number of steps decides, and a
 * pipelined chain for longer data (costs.h chooses). */
#include "collectives/algorithm.h"
#include "collectives/costs.h"

/* Binomial tree broadcast: each step doubles the number of ranks that have the data.
 *
 * Positions are counted from the root. In the step of distance d, position i < d sends to position
 * i + d:
 *
 *   p = 6    0 -> 1    0 -> 2, 1 -> 3    0 -> 4, 1 -> 5
 *
 * Cost: ceil(log2 p) (a + S b). */
int coll_tree(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    int p = comm->size, position = (comm->rank - args->root + p) % p;
    for (int distance = 1; distance < p; distance *= 2) {
        bool sending = position < distance;
        if (position >= 2 * distance || (sending && position + distance >= p)) continue;
        int other = sending ? position + distance : position - distance;
        other = (other + args->root) % p;
        HVD_TRY(
            coll_exchange(comm,
                          (struct coll_exchange){args->data, args->data, sending ? args->bytes : 0,
                                                 sending ? 0 : args->bytes, other, other},
                          err));
    }
    return HVD_OK;
}

/* Pipelined chain broadcast: segments flow from the root through all ranks in a row.
 *
 *   root -> root + 1 -> ... -> root + p - 1 (mod p)
 *
 * Each rank sends a segment on while it receives the next segment.
 *
 * Cost: (p - 2 + n) (a + S/n b) for n segments (costs.h computes n). For long data that is about S
 * b, and each link carries the data once. */
struct chain {
    const struct coll_args *args;
    int left, right;
    size_t segment;
    bool receives, sends;
};

static struct coll_exchange item_of(const void *arg, size_t k) {
    const struct chain *c = arg;
    struct coll_range all = {0, c->args->bytes}, s = coll_segment(all, c->segment, k);
    char *data = (char *)c->args->data + s.begin;
    return (struct coll_exchange){.out = data,
                                  .in = data,
                                  .out_bytes = c->sends ? coll_length(s) : 0,
                                  .in_bytes = c->receives ? coll_length(s) : 0,
                                  .to = c->right,
                                  .from = c->left};
}

int coll_chain(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    int p = comm->size, rank = comm->rank, distance = (rank - args->root + p) % p;
    struct pace pace = comm_pace(comm);
    struct chain c = {.args = args,
                      .left = (rank + p - 1) % p,
                      .right = (rank + 1) % p,
                      .segment = coll_chain_segment(comm, args->bytes),
                      .receives = distance > 0,
                      .sends = distance < p - 1};
    struct coll_pipeline pipeline = {.items = coll_segments(args->bytes, c.segment),
                                     .item = item_of,
                                     .arg = &c,
                                     .depth = pace.depth};
    return coll_pipeline(comm, &pipeline, err);
}
