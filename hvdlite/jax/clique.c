#include "clique.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct library library = {.mutex = PTHREAD_MUTEX_INITIALIZER};
_Thread_local char clique_failure[1024];

int clique_refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(clique_failure, sizeof clique_failure, format, values);
    va_end(values);
    return 1;
}

/* ---- announcing ---- */
static struct clique *clique_new(const char *name, int size, int rank, int color, int group) {
    struct clique *c = calloc(1, sizeof *c + (size_t)size * sizeof *c->members);
    if (!c) return clique_refuse("hvdlite.jax: no memory for a group of %d ranks", size), NULL;
    c->rank = rank, c->size = size, c->color = color, c->group = group;
    c->noted.bytes = -1;
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

/* Announces the clique of the next split with this color and key. Only one clique can be announced
 * at a time. NULL: memory is short. */
API struct clique *hvdlite_jax_announce(const char *name, const int *members, int size, int key,
                                        int color) {
    struct clique *c = clique_new(name, size, key, color, CLIQUE_WARMING);
    for (int i = 0; c && i < size; i++) c->members[i].rank = members[i];
    return library.announced = c;
}

/* Ends the state CLIQUE_WARMING; then hvdlite_jax_open gives the clique its group. False: XLA has
 * not asked for the clique. */
API bool hvdlite_jax_asked(struct clique *c) {
    c->group = CLIQUE_CLOSED;
    return atomic_exchange(&library.announced, NULL) != c;
}

API void hvdlite_jax_open(struct clique *c, int group) { c->group = group; }

struct clique *clique_split(int color, int key) {
    char name[60];
    struct clique *c = library.announced;
    if (c && c->color == color && c->rank == key &&
        atomic_compare_exchange_strong(&library.announced, &c, NULL))
        return c;
    snprintf(name, sizeof name, "first device %d, this process is number %d", color, key);
    return clique_new(name, library.size, library.rank, color, CLIQUE_CLOSED);
}

/* ---- running ---- */
char *clique_scratch(struct clique *c, int64_t bytes) {
    if (c->scratch && bytes <= c->room) return c->scratch;
    free(c->scratch);
    c->scratch = calloc(1, (size_t)bytes + 1);
    c->room = c->scratch ? bytes : 0;
    if (!c->scratch) clique_refuse("hvdlite.jax: no memory for %lld bytes", (long long)bytes);
    return c->scratch;
}

/* Prepares a collective in the clique's group, or a message in the group of all ranks. */
static hvd_handle *prepare(const struct clique *c, const hvd_tensor *t, hvd_error *err) {
    char name[HVD_MAX_NAME];
    hvd_tensor mine = *t;
    /* one name for all collectives of a clique: ranks that disagree then get an error
     * immediately */
    mine.name = c->name;
    mine.group = c->group, mine.waited = 1;
    if (t->kind == HVD_SEND || t->kind == HVD_RECV) {
        mine.group = 0, mine.root = c->members[t->root].rank;
        bool sends = t->kind == HVD_SEND;
        snprintf(name, sizeof name, "%s.%d-%d", c->name, sends ? library.rank : mine.root,
                 sends ? mine.root : library.rank);
        mine.name = name;
    }
    return library.core.hvd_plan(&mine, err);
}

/* number of entries in which a tensor's plan may be */
enum { NEAR = 8 };

/* Finds a plan that no call is using, or makes one. NULL: failure. */
static struct plan *plan_of(struct clique *c, const hvd_tensor *t) {
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
    if (!handle) return clique_refuse("%s", err.text), NULL;
    if (other->handle) library.core.hvd_drop(other->handle);
    other->handle = handle;
    memcpy(other->like, like, sizeof like);
    return other;
}

static const double NO_LIMIT = 1e9; /* seconds; if a rank dies, the core ends each wait */

/* Starts a collective or a message. NULL: failure. */
static struct plan *begin(struct clique *c, const hvd_tensor *t, double seconds) {
    if (c->group < 0)
        return clique_refuse("hvdlite.jax: a program has a collective among processes that were "
                             "not announced (%s): the program was compiled or loaded before "
                             "hvd.init(), or in a way that this version of hvdlite does not know",
                             c->name),
               NULL;
    pthread_mutex_lock(&library.mutex);
    struct plan *p = plan_of(c, t);
    if (p) p->taken = true;
    pthread_mutex_unlock(&library.mutex);
    if (p) p->done = library.core.hvd_run(p->handle, t->in, t->out, seconds);
    return p;
}

struct plan *clique_start(struct clique *c, const hvd_tensor *t) { return begin(c, t, -1); }

int clique_end(struct plan *p) {
    hvd_error err;
    err.code = HVD_OK;
    while (!p->done && !library.core.hvd_finish(p->handle, NO_LIMIT, &err)) continue;
    p->taken = false;
    return err.code && clique_refuse("%s", err.text);
}

int clique_run(struct clique *c, const hvd_tensor *t) {
    struct plan *p = begin(c, t, NO_LIMIT);
    return !p || clique_end(p);
}
