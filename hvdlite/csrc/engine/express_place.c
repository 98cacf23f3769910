#include "engine/express_place.h"

#include "base/clock.h"

#include <stdlib.h>

bool express_takes(const struct express *x, const struct tensor *tensor) {
    const struct executor *by = x->by;
    bool traced = log_on(by->log, LOG_TRACE) || timeline_on(by->timeline);
    return tensor->request.waited && !tensor->request.failed && !tensor->nviews && !traced;
}

struct express_place *express_find(struct express *x, const struct map_node *like) {
    monitor_lock(&x->monitor);
    struct express_place *p = map_find(&x->names, like);
    monitor_unlock(&x->monitor);
    return p;
}

struct express_place *express_add(struct express *x, const struct request *r) {
    struct express_place *p = calloc(1, sizeof *p);
    hvd_error ignored;
    if (!p) return NULL;
    request_copy(&p->request, r);
    p->node = map_node_of(p->request.name, p);
    p->next = x->places;
    p->number = x->nplaces++;
    x->places = p;
    monitor_lock(&x->monitor);
    int code = map_put(&x->names, &p->node, &ignored);
    monitor_unlock(&x->monitor);
    return code ? NULL : p;
}

/* ---- rounds ---- */

#define CLOSED ((uint64_t)1 << 15)

static uint64_t round_of(uint64_t word) { return word >> 16; }
static uint64_t count_of(uint64_t word) { return word & (CLOSED - 1); }

bool round_arrive(_Atomic uint64_t *word, uint64_t own, uint64_t n) {
    /* As the last round has left it. Whoever reads before it swaps fetches the line twice. */
    uint64_t w = own - word_of(0, 1) + n, next;
    do {
        bool here = round_of(w) == round_of(own);
        if (here && w & CLOSED) return false;
        next = (here ? w : own) + 1;
    } while (!atomic_compare_exchange_weak_explicit(word, &w, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    return true;
}

bool round_close(_Atomic uint64_t *word, uint64_t own, bool arrived, uint64_t n) {
    uint64_t w = atomic_load_explicit(word, memory_order_acquire), next;
    do {
        bool here = round_of(w) == round_of(own);
        if (here ? count_of(w) == n : arrived) return false; /* others are in the next one */
        next = (here ? w : own) | CLOSED;
    } while (!atomic_compare_exchange_weak_explicit(word, &w, next, memory_order_acq_rel,
                                                    memory_order_acquire));
    return true;
}

bool round_wait(_Atomic uint64_t *word, uint64_t own, uint64_t n, struct wait_policy policy) {
    struct waiter waiter = {0};
    for (unsigned looks = 1;; looks++) {
        uint64_t w = atomic_load_explicit(word, memory_order_acquire);
        if (round_of(w) != round_of(own) || count_of(w) == n) return true;
        if (w & CLOSED) return false;
        if (policy.spin > 0 && looks % UNTIMED) {
            clock_relax();
            continue;
        }
        double pause = waiter_next(&waiter, clock_now(), policy, 1);
        if (pause > 0) return !round_close(word, own, true, n);
        if (pause < 0) clock_yield();
    }
}
