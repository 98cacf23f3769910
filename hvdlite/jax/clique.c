#include "clique.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct library library = {.announcing = PTHREAD_MUTEX_INITIALIZER};
_Thread_local char clique_failure[1024];

int clique_refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(clique_failure, sizeof clique_failure, format, values);
    va_end(values);
    return 1;
}

/* ---- announcing ---- */
static struct clique *clique_new(const char *name, int size, int rank) {
    struct clique *c =
        calloc(1, sizeof *c + (size_t)size * (sizeof *c->parts + sizeof *c->members));
    if (!c) return clique_refuse("hvdlite.jax: no memory for a group of %d ranks", size), NULL;
    pthread_mutex_init(&c->mutex, NULL);
    c->group = CLIQUE_CLOSED;
    c->rank = rank, c->size = size;
    c->members = (int *)(c->parts + size);
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

/* The next split by this color and key is the clique of these members. 0, or a failure. */
API int hvdlite_jax_expect(const char *name, const int *members, int size, int rank, int color) {
    struct clique *c = clique_new(name, size, rank);
    if (c) memcpy(c->members, members, (size_t)size * sizeof *members);
    if (c) c->group = CLIQUE_WARMING;
    pthread_mutex_lock(&library.announcing);
    library.expected = c, library.color = color, library.taken = false;
    pthread_mutex_unlock(&library.announcing);
    return !c;
}

/* Ends the warming. The clique, whose group opens by hvdlite_jax_open; NULL: XLA has not asked. */
API struct clique *hvdlite_jax_expected(void) {
    pthread_mutex_lock(&library.announcing);
    struct clique *c = library.expected;
    library.expected = NULL;
    if (c && !library.taken) free(c), c = NULL;
    if (c) c->group = CLIQUE_CLOSED;
    pthread_mutex_unlock(&library.announcing);
    return c;
}

API void hvdlite_jax_open(struct clique *c, int group) { c->group = group; }

struct clique *clique_split(int color, int key) {
    char name[60];
    pthread_mutex_lock(&library.announcing);
    struct clique *c = library.expected;
    if (c && !library.taken && library.color == color && c->rank == key) {
        library.taken = true;
    } else {
        snprintf(name, sizeof name, "first device %d, this process is number %d", color, key);
        c = clique_new(name, library.size, library.rank);
    }
    pthread_mutex_unlock(&library.announcing);
    return c;
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

struct plan {
    struct plan *next;
    hvd_handle *handle;
    atomic_bool under_way;
    int kind, dtype, op, root;
    int64_t count;
};

/* Prepares a collective in the clique's group, or a message in the job's. */
static hvd_handle *prepare(const struct clique *c, const hvd_tensor *t, hvd_error *err) {
    char name[HVD_MAX_NAME];
    hvd_tensor mine = *t;
    /* one name for all collectives of a clique, so that ranks that disagree get an error at once */
    mine.name = c->name;
    mine.group = c->group, mine.waited = 1;
    if (t->kind == HVD_SEND || t->kind == HVD_RECV) {
        mine.group = 0, mine.root = c->members[t->root];
        bool sends = t->kind == HVD_SEND;
        snprintf(name, sizeof name, "%s.%d-%d", c->name, sends ? library.rank : mine.root,
                 sends ? mine.root : library.rank);
        mine.name = name;
    }
    return library.core.hvd_plan(&mine, err);
}

static struct plan *plan_of(struct clique *c, const hvd_tensor *t) {
    struct plan **first = &c->plans[(uint64_t)*t->dims % PLANS], *p = *first;
    while (p && !(p->kind == t->kind && p->dtype == t->dtype && p->op == t->op &&
                  p->root == t->root && p->count == *t->dims && !p->under_way))
        p = p->next;
    if (p) return p;
    hvd_error err = {0};
    hvd_handle *handle = prepare(c, t, &err);
    if (!handle) return clique_refuse("%s", err.text), NULL;
    if (!(p = malloc(sizeof *p)))
        return library.core.hvd_drop(handle), clique_refuse("hvdlite.jax: no memory"), NULL;
    *p = (struct plan){*first, handle, false, t->kind, t->dtype, t->op, t->root, *t->dims};
    return *first = p;
}

static const double NO_LIMIT = 1e9; /* seconds; the core ends each wait itself when a rank dies */

/* The caller holds the mutex. NULL: a failure. */
static struct plan *begin(struct clique *c, const hvd_tensor *t, double seconds) {
    if (c->group < 0)
        return clique_refuse("hvdlite.jax: a program has a collective among processes that were "
                             "not announced (%s): the program was compiled or loaded before "
                             "hvd.init(), or in a way that this version of hvdlite does not know",
                             c->name),
               NULL;
    struct plan *p = plan_of(c, t);
    if (p) p->under_way = !library.core.hvd_run(p->handle, t->in, t->out, seconds);
    return p;
}

int clique_run(struct clique *c, const hvd_tensor *t) {
    pthread_mutex_lock(&c->mutex);
    int failed = clique_end(begin(c, t, NO_LIMIT));
    pthread_mutex_unlock(&c->mutex);
    return failed;
}

struct plan *clique_start(struct clique *c, const hvd_tensor *t) {
    pthread_mutex_lock(&c->mutex);
    struct plan *p = begin(c, t, -1);
    pthread_mutex_unlock(&c->mutex);
    return p;
}

int clique_end(struct plan *p) {
    if (!p || !p->under_way) return !p;
    hvd_error err;
    while (!library.core.hvd_finish(p->handle, NO_LIMIT, &err)) continue;
    p->under_way = false;
    return err.code && clique_refuse("%s", err.text);
}
