/* Binomial tree broadcast: each round doubles the ranks that have the data.
 *
 * Counting ranks from the root, in the round of distance d rank i < d sends to rank i + d:
 *
 *   p = 6    0 -> 1    0 -> 2, 1 -> 3    0 -> 4, 1 -> 5
 *
 * Cost: ceil(log2 p) (a + S b). For data so small that rounds count; long data goes by a chain. */
#include "coll.h"

/* The data goes in pieces only to keep within the size of one transfer. */
static int pass(struct transport *t, const struct coll_job *job, int peer, bool sending,
                hvd_error *err) {
    struct coll_range all = {0, job->bytes}, part;
    for (size_t k = 0; coll_length(part = coll_segment(all, COLL_SEGMENT, k)); k++) {
        struct transfer x = {0};
        char *data = (char *)job->data + part.begin;
        HVD_TRY(sending ? transport_isend(t, data, coll_length(part), peer, &x, err)
                        : transport_irecv(t, data, coll_length(part), peer, &x, err));
        HVD_TRY(transport_wait(t, &x, err));
    }
    return HVD_OK;
}

int coll_tree(struct transport *t, const struct coll_job *job, hvd_error *err) {
    int p = t->at.size, place = (t->at.rank - job->root + p) % p;
    for (int distance = 1; distance < p; distance *= 2) {
        bool sending = place < distance;
        if (place >= 2 * distance || (sending && place + distance >= p)) continue;
        int other = sending ? place + distance : place - distance;
        HVD_TRY(pass(t, job, (other + job->root) % p, sending, err));
    }
    return HVD_OK;
}
