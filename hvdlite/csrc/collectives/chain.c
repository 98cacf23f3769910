/* Pipelined chain broadcast: segments flow from the root through all ranks in a row.
 *
 *   root -> root + 1 -> ... -> root + p - 1 (mod p), each passing a segment on while the next comes
 * in
 *
 * Cost: (p - 2 + n) (a + S/n b) for n segments: about S b for long data, every link used once. */
#include "collectives/coll.h"

enum { IN_FLIGHT = 4 }; /* segments in flight each way */

struct chain {
    struct transport *t;
    const struct coll_job *job;
    bool receives, sends;
    struct transfer in[IN_FLIGHT], out[IN_FLIGHT]; /* of segment k at k % IN_FLIGHT */
};

static struct coll_range segment(const struct chain *c, size_t k) {
    return coll_segment((struct coll_range){0, c->job->bytes}, COLL_SEGMENT, k);
}

static int post(struct chain *c, size_t k, hvd_error *err) {
    struct coll_range s = segment(c, k);
    int left = (c->t->at.rank + c->t->at.size - 1) % c->t->at.size;
    if (!c->receives || !coll_length(s)) return HVD_OK;
    return transport_irecv(c->t, (char *)c->job->data + s.begin, coll_length(s), left,
                           &c->in[k % IN_FLIGHT], err);
}

static int pass_on(struct chain *c, size_t k, hvd_error *err) {
    struct coll_range s = segment(c, k);
    int right = (c->t->at.rank + 1) % c->t->at.size;
    if (!c->sends) return HVD_OK;
    HVD_TRY(transport_wait(c->t, &c->out[k % IN_FLIGHT], err));
    return transport_isend(c->t, (char *)c->job->data + s.begin, coll_length(s), right,
                           &c->out[k % IN_FLIGHT], err);
}

int coll_chain(struct transport *t, const struct coll_job *job, hvd_error *err) {
    int p = t->at.size, place = (t->at.rank - job->root + p) % p;
    struct chain c = {.t = t, .job = job, .receives = place > 0, .sends = place < p - 1};
    size_t segments = (job->bytes + COLL_SEGMENT - 1) / COLL_SEGMENT;
    for (size_t k = 0; k < IN_FLIGHT; k++) HVD_TRY(post(&c, k, err));
    for (size_t k = 0; k < segments; k++) {
        HVD_TRY(transport_wait(t, &c.in[k % IN_FLIGHT], err));
        HVD_TRY(pass_on(&c, k, err));
        HVD_TRY(post(&c, k + IN_FLIGHT, err));
    }
    for (size_t k = 0; k < IN_FLIGHT; k++) HVD_TRY(transport_wait(t, &c.out[k], err));
    return HVD_OK;
}
