#include "engine/express_place.h"

#include <stdlib.h>

bool express_takes(const struct express *x, const struct tensor *tensor) {
    const struct executor *by = x->by;
    bool traced = log_on(by->log, LOG_TRACE) || (by->timeline && timeline_on(by->timeline));
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
