#include "clique.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct jax jax = {.world = {.group = -1}};
_Thread_local char clique_failure[1024];

int clique_refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(clique_failure, sizeof clique_failure, format, values);
    va_end(values);
    return 1;
}

/* Prepares a collective in the clique's group, or a message in the group of all ranks. */
static hvd_handle *prepare(const struct clique *c, const hvd_tensor *t, hvd_error *err) {
    char name[HVD_MAX_NAME];
    hvd_tensor mine = *t;
    /* one name for all collectives of a clique: ranks that disagree get an error immediately */
    mine.name = c->name, mine.group = c->group, mine.waited = 1;
    if (t->kind == HVD_SEND || t->kind == HVD_RECV) {
        mine.group = 0, mine.root = c->members[t->root];
        bool sends = t->kind == HVD_SEND;
        snprintf(name, sizeof name, "%s.%d-%d", c->name, sends ? jax.world.rank : mine.root,
                 sends ? mine.root : jax.world.rank);
        mine.name = name;
    }
    return jax.core.hvd_plan(&mine, err);
}

/* Number of entries that may have a tensor's plan; each call searches these entries. With fewer
 * entries, a call would replace plans that the program still uses. Chosen, not measured. */
enum { NEAR = 8 };

/* Finds a plan that no call is using, or makes one. NULL: failure. */
static struct plan *find_or_make_plan(struct clique *c, const hvd_tensor *t) {
    const int64_t row = t->ndim > 1 ? t->dims[1] : 0;
    const int64_t like[] = {t->kind, t->dtype, t->op, t->root, *t->dims, row};
    uint64_t hash = (uint64_t)(*t->dims + row + 8 * t->root + t->kind);
    struct plan *other = NULL; /* the entry to replace, preferably an empty one */
    for (uint64_t i = hash; i < hash + NEAR; i++) {
        struct plan *p = &c->plans[i % PLANS];
        if (p->taken) continue;
        if (p->handle && !memcmp(p->like, like, sizeof like)) return p;
        if (!other || (other->handle && !p->handle)) other = p;
    }
    hvd_error err = {.text = "hvdlite.jax: too many messages at once"};
    hvd_handle *handle = other ? prepare(c, t, &err) : NULL;
    if (err.code) jax.core.hvd_keep_failure(&err);
    if (!handle) return clique_refuse("%s", err.text), NULL;
    if (other->handle) jax.core.hvd_drop(other->handle);
    other->handle = handle;
    memcpy(other->like, like, sizeof like);
    return other;
}

static const double NO_LIMIT = 1e9; /* seconds; if a rank dies, the core ends each wait */

struct plan *clique_start(struct clique *c, const hvd_tensor *t, double seconds) {
    struct plan *p = find_or_make_plan(c, t);
    if (!p) return NULL;
    p->taken = true;
    p->done = jax.core.hvd_run(p->handle, t->in, t->out, seconds);
    return p;
}

int clique_end(struct plan *p) {
    hvd_error err;
    err.code = HVD_OK;
    while (!p->done && !jax.core.hvd_finish(p->handle, NO_LIMIT, &err)) continue;
    p->taken = false;
    if (err.code) jax.core.hvd_keep_failure(&err);
    return err.code && clique_refuse("%s", err.text);
}

int clique_run(struct clique *c, const hvd_tensor *t) {
    struct plan *p = clique_start(c, t, NO_LIMIT);
    return !p || clique_end(p);
}

void clique_settle(struct clique *c) {
    for (struct plan *p = c->plans; p < c->plans + PLANS; p++) {
        while (p->taken && !p->done && !jax.core.hvd_finish(p->handle, NO_LIMIT, NULL)) continue;
        p->taken = false;
    }
}
