#include "clique.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct library library = {.announcing = PTHREAD_MUTEX_INITIALIZER};
_Thread_local char clique_failure[1024];

static const double NO_LIMIT = 1e9; /* seconds; the core ends each wait itself when a rank dies */

static int fail(const hvd_error *err) {
    snprintf(clique_failure, sizeof clique_failure, "%s", err->text);
    return 1;
}

int clique_refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(clique_failure, sizeof clique_failure, format, values);
    va_end(values);
    return 1;
}

/* NULL: a failure. */
static struct clique *clique_new(enum clique_state state, const int *members, int size, int rank) {
    struct clique *c =
        calloc(1, sizeof *c + (size_t)size * (sizeof *c->parts + sizeof *c->members));
    if (!c) return clique_refuse("hvdlite.jax: no memory for a group of %d ranks", size), NULL;
    int *kept = (int *)(c->parts + size);
    *c = (struct clique){.mutex = PTHREAD_MUTEX_INITIALIZER,
                         .state = state,
                         .rank = rank,
                         .size = size,
                         .members = kept};
    uint64_t hash = 14695981039346656037u; /* FNV-1a, for names in which not all members fit */
    int used = snprintf(c->name, sizeof c->name, "jax");
    for (int i = 0; i < size; i++) {
        char *end = c->name + used;
        kept[i] = members ? members[i] : i;
        hash = (hash ^ (uint64_t)kept[i]) * 1099511628211u;
        if (used < 160)
            used += snprintf(end, sizeof c->name - (size_t)used, i ? ",%d" : ".%d", kept[i]);
        else
            snprintf(end, sizeof c->name - (size_t)used, "-%llx", (unsigned long long)hash);
    }
    return c;
}

/* ---- announcing ---- */
/* Announces that the next split by this color makes the clique of these members. 0, or a
 * failure. */
API int hvdlite_jax_expect(const int *members, int size, int rank, int color) {
    struct clique *c = clique_new(CLIQUE_WARMING, members, size, rank);
    pthread_mutex_lock(&library.announcing);
    library.expected = c, library.warming = NULL, library.color = color;
    pthread_mutex_unlock(&library.announcing);
    return !c;
}

/* Ends the announcement. 1: XLA has made the communicator. `why`: NULL, or why the communicator
 * can't be used. */
API int hvdlite_jax_expected(const char *why) {
    pthread_mutex_lock(&library.announcing);
    struct clique *made = library.warming;
    if (made) {
        pthread_mutex_lock(&made->mutex);
        made->state = why ? CLIQUE_REFUSED : CLIQUE_ANNOUNCED;
        snprintf(made->why, sizeof made->why, "%s", why ? why : "");
        pthread_mutex_unlock(&made->mutex);
    }
    library.expected = library.warming = NULL;
    pthread_mutex_unlock(&library.announcing);
    return made != NULL;
}

struct clique *clique_split(int color, int key) {
    pthread_mutex_lock(&library.announcing);
    struct clique *c = library.expected;
    if (c && library.color == color && c->rank == key)
        library.warming = c, library.expected = NULL;
    else if ((c = clique_new(CLIQUE_REFUSED, NULL, library.size, library.rank)))
        snprintf(c->why, sizeof c->why,
                 "hvdlite.jax: a program has a collective among processes that were not announced "
                 "(first device %d, this process is number %d): the program was compiled or loaded "
                 "before hvd.init(), or in a way that this version of hvdlite does not know",
                 color, key);
    pthread_mutex_unlock(&library.announcing);
    return c;
}

bool clique_is_warming(struct clique *c) {
    pthread_mutex_lock(&library.announcing);
    bool is = c == library.warming;
    pthread_mutex_unlock(&library.announcing);
    return is;
}

/* ---- running ---- */
/* Makes sure that the clique's group is open. The caller holds the mutex. 0, or a failure. */
static int open_group(struct clique *c) {
    if (c->state == CLIQUE_OPEN) return 0;
    if (c->state == CLIQUE_WARMING)
        return clique_refuse("hvdlite.jax: a collective ran while its ranks were being announced");
    if (c->state == CLIQUE_ANNOUNCED) {
        c->group = library.open(c->members, c->size, c->why, sizeof c->why);
        c->state = c->group < 0 ? CLIQUE_REFUSED : CLIQUE_OPEN;
    }
    return c->state == CLIQUE_REFUSED && clique_refuse("%s", c->why);
}

struct plan {
    struct plan *next;
    hvd_handle *handle;
    int kind, dtype, op;
    int64_t count;
};

static struct plan *plan_of(struct clique *c, const hvd_tensor *t) {
    struct plan **first = &c->plans[(uint64_t)*t->dims % PLANS], *p = *first;
    while (p &&
           !(p->kind == t->kind && p->dtype == t->dtype && p->op == t->op && p->count == *t->dims))
        p = p->next;
    if (p) return p;
    hvd_error err = {0};
    hvd_tensor mine = *t;
    /* one name for all collectives of a clique, so that ranks that disagree get an error at once */
    mine.name = c->name;
    mine.group = c->group, mine.waited = 1;
    hvd_handle *handle = library.core.hvd_plan(&mine, &err);
    if (!handle) return fail(&err), NULL;
    if (!(p = malloc(sizeof *p)))
        return library.core.hvd_drop(handle), clique_refuse("hvdlite.jax: no memory"), NULL;
    *p = (struct plan){*first, handle, t->kind, t->dtype, t->op, *t->dims};
    return *first = p;
}

int clique_run(struct clique *c, const hvd_tensor *t) {
    hvd_error err = {0};
    pthread_mutex_lock(&c->mutex);
    struct plan *p = open_group(c) ? NULL : plan_of(c, t);
    int failed = !p;
    if (p && !library.core.hvd_run(p->handle, t->in, t->out, NO_LIMIT) &&
        !(library.core.hvd_finish(p->handle, NO_LIMIT, &err) && !err.code))
        failed = fail(&err);
    pthread_mutex_unlock(&c->mutex);
    return failed;
}

hvd_handle *clique_start(struct clique *c, const hvd_tensor *t) {
    char name[HVD_MAX_NAME];
    hvd_error err = {0};
    if (c->state == CLIQUE_REFUSED) return clique_refuse("%s", c->why), NULL;
    int other = c->members[t->root], from = t->kind == HVD_SEND ? library.rank : other,
        to = t->kind == HVD_SEND ? other : library.rank;
    snprintf(name, sizeof name, "%s.%d-%d", c->name, from, to);
    hvd_tensor mine = *t;
    /* sent in the group of the job, because not all members may take part */
    mine.name = name, mine.root = other;
    hvd_handle *handle = library.core.hvd_start(&mine, &err);
    if (!handle) fail(&err);
    return handle;
}

int clique_end(hvd_handle *handle) {
    hvd_error err = {0};
    if (!handle) return 1;
    while (!library.core.hvd_finish(handle, NO_LIMIT, &err)) continue;
    library.core.hvd_drop(handle);
    return err.code ? fail(&err) : 0;
}
