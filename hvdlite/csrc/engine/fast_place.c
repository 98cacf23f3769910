#include "engine/fast_place.h"

#include <stdlib.h>

bool fast_place_takes(const struct fast_path *x, const struct tensor *tensor) {
    const struct executor *by = x->by;
    bool traced = log_on(by->log, LOG_TRACE) || timeline_on(by->timeline);
    return tensor->request.waited && !tensor->request.failed && !tensor->nviews && !traced;
}

struct fast_place *fast_place_find(struct fast_path *x, const struct map_node *like) {
    mutex_lock(&x->mutex);
    struct fast_place *p = map_find(&x->names, like);
    mutex_unlock(&x->mutex);
    return p;
}

struct fast_place *fast_place_add(struct fast_path *x, const struct request *r) {
    struct fast_place *p = calloc(1, sizeof *p);
    hvd_error ignored;
    if (!p) return NULL;
    request_copy(&p->request, r);
    p->node = map_node_of(p->request.name, p);
    p->next = x->places;
    p->hosts.number = x->nplaces++;
    x->places = p;
    mutex_lock(&x->mutex);
    int code = map_put(&x->names, &p->node, &ignored);
    mutex_unlock(&x->mutex);
    return code ? NULL : p;
}

void fast_place_free_all(struct fast_path *x) {
    for (struct fast_place *p = x->places, *next; p; p = next) {
        next = p->next;
        free(p->hosts.message);
        free(p);
    }
    map_clear(&x->names);
}
