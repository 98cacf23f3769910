/* Binomial tree broadcast: each step doubles the number of ranks that have the data.
 *
 * Positions are counted from the root. In the step of distance d, position i < d sends to position
 * i + d:
 *
 *   p = 6    0 -> 1    0 -> 2, 1 -> 3    0 -> 4, 1 -> 5
 *
 * Cost: ceil(log2 p) (a + S b). Used for data so small that the number of steps decides
 * (costs.h). */
#include "collectives/algorithm.h"

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
