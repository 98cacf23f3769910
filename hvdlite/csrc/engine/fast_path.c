#include "engine/fast_path.h"

#include "engine/fast_place.h"
#include "transport/transport.h"

enum {
    /* Chosen, not measured. If no round was completed after MISSES successive decisions on a
     * tensor, the fast path is tried only after one of SELDOM decisions. With fewer MISSES, a
     * tensor uses the coordinator for a long time if ranks are late a few times. With more MISSES,
     * ranks open more rounds that no rank completes. */
    MISSES = 8,
    SELDOM = 16
};

void fast_path_open(struct fast_path *x, struct transport *t, struct executor *by,
                    const atomic_bool *failed, int group, bool by_messages) {
    struct window *window = t->all.window;
    *x = (struct fast_path){.transport = t,
                            .by = by,
                            .failed = failed,
                            .group = group,
                            .shared.window = window && window->n > 1 ? window : NULL,
                            .hosts.on =
                                by_messages && t->all.size > 1 && t->all.hosts == t->all.size};
    mutex_init(&x->mutex);
}

void fast_path_close(struct fast_path *x) {
    fast_hosts_drop(x, NULL);
    fast_place_free_all(x);
    mutex_destroy(&x->mutex);
}

static bool suits(const struct fast_path *x, const struct tensor *tensor) {
    const struct request *r = &tensor->request;
    bool plain = r->op != HVD_ADASUM && !r->codec.kind && !r->rule && !r->grouped && !r->states &&
                 !r->delegated;
    if (!plain) return false;
    return x->hosts.on ? fast_hosts_suits(x, r) : fast_window_suits(x, tensor);
}

int fast_path_agreed(struct fast_path *x, const struct tensor *tensor, hvd_error *err) {
    if (x->fails || !suits(x, tensor)) return HVD_OK;
    struct fast_place *p = fast_place_find(x, &tensor->node);
    if (!p && !(p = fast_place_add(x, &tensor->request))) {
        x->fails = true;
        return x->hosts.on ? error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'",
                                       tensor->request.name)
                           : HVD_OK;
    }
    mutex_lock(&x->mutex); /* other threads read the name in the request */
    request_copy(&p->request, &tensor->request);
    mutex_unlock(&x->mutex);
    p->misses = p->round || !p->generation ? 0 : p->misses + 1;
    p->round = 0;
    p->generation++;
    bool often = p->misses < MISSES || p->misses % SELDOM == 0;
    if (x->hosts.on) return fast_hosts_open(x, p, often, err);
    fast_window_open(x, p, tensor, often);
    return HVD_OK;
}
