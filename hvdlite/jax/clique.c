#include "clique.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct core core;
struct job job;
_Thread_local char clique_failure[1024];

static const double NO_LIMIT = 1e9; /* seconds; the core ends each wait itself when a rank dies */

int clique_fail(const hvd_error *err) {
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

static struct clique *clique_new(const int *members, int size, int rank, int number) {
    struct clique *c = calloc(1, sizeof *c);
    int *kept = calloc((size_t)size, sizeof *kept);
    if (!c || !kept) abort(); /* XLA has no way to take an error here */
    *c = (struct clique){.mutex = PTHREAD_MUTEX_INITIALIZER,
                         .number = number,
                         .rank = rank,
                         .size = size,
                         .members = kept};
    int used = snprintf(c->name, sizeof c->name, "jax");
    for (int i = 0; i < size; i++) {
        kept[i] = members ? members[i] : i;
        if (used + 16 < (int)sizeof c->name)
            used +=
                snprintf(c->name + used, sizeof c->name - (size_t)used, i ? ",%d" : ".%d", kept[i]);
    }
    return c;
}

struct clique *clique_world(void) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static struct clique *world;
    pthread_mutex_lock(&once);
    if (!world) {
        world = clique_new(NULL, job.size, job.rank, 0);
        world->state = CLIQUE_OPEN;
    }
    pthread_mutex_unlock(&once);
    return world;
}

/* ---- announcing: one clique at a time; Python holds a lock around it ---- */
static pthread_mutex_t announcing = PTHREAD_MUTEX_INITIALIZER;
static struct clique *expected, *warming;
static int expected_color;

void clique_expect(const int *members, int size, int rank, int color, int number) {
    struct clique *c = clique_new(members, size, rank, number);
    c->state = CLIQUE_WARMING;
    pthread_mutex_lock(&announcing);
    expected = c, warming = NULL, expected_color = color;
    pthread_mutex_unlock(&announcing);
}

int clique_expected(const char *why) {
    pthread_mutex_lock(&announcing);
    struct clique *made = warming;
    if (made) {
        pthread_mutex_lock(&made->mutex);
        made->state = why ? CLIQUE_REFUSED : CLIQUE_ANNOUNCED;
        snprintf(made->why, sizeof made->why, "%s", why ? why : "");
        pthread_mutex_unlock(&made->mutex);
    } else if (expected) {
        free(expected->members);
        free(expected);
    }
    expected = warming = NULL;
    pthread_mutex_unlock(&announcing);
    return made != NULL;
}

struct clique *clique_split(int color, int key) {
    struct clique *c;
    pthread_mutex_lock(&announcing);
    if (expected && expected_color == color && expected->rank == key) {
        c = warming = expected;
        expected = NULL;
    } else {
        c = clique_new(NULL, job.size, job.rank, -1);
        c->state = CLIQUE_REFUSED;
        snprintf(c->why, sizeof c->why,
                 "hvdlite.jax: a program has a collective among processes that were not announced "
                 "(first device %d, this process is number %d): the program was compiled or loaded "
                 "before hvd.init(), or in a way that this version of hvdlite does not know",
                 color, key);
    }
    pthread_mutex_unlock(&announcing);
    return c;
}

bool clique_is_warming(struct clique *c) {
    pthread_mutex_lock(&announcing);
    bool is = c == warming;
    pthread_mutex_unlock(&announcing);
    return is;
}

/* ---- opening: the members agree first: none waits in the core for one that gave up ---- */
struct message {
    int64_t words[2];
};

/* Starts to send to or receive from a rank of the job. `stage`: which message of the pair. */
static hvd_handle *start_message(int kind, const char *stage, const struct clique *c, int member,
                                 int other, struct message *message) {
    char name[HVD_MAX_NAME];
    const int64_t two = 2;
    hvd_error err = {0};
    snprintf(name, sizeof name, "%s.%d.%s.%d", c->name, c->number, stage, member);
    hvd_tensor t = {.name = name,
                    .kind = kind,
                    .dtype = HVD_INT64,
                    .root = other,
                    .prescale = 1,
                    .postscale = 1,
                    .ndim = 1,
                    .dims = &two,
                    .in = message,
                    .out = message,
                    .out_rows = two};
    hvd_handle *handle = core.hvd_start(&t, &err);
    if (!handle) clique_fail(&err);
    return handle;
}

/* Waits for a message. 1: it came or went. 0: the time was up. -1: it failed. Frees the handle. */
static int message_ended(hvd_handle *handle, double seconds) {
    hvd_error err = {0};
    if (!handle) return -1;
    int ended = core.hvd_finish(handle, seconds, &err);
    core.hvd_drop(handle);
    if (ended && err.code) return clique_fail(&err), -1;
    return ended;
}

enum { AGREED, ABSENT, DIFFERENT, WITHDRAWN };

static int say_verdict(const struct clique *c, const struct message *verdict) {
    int rank = (int)verdict->words[1];
    switch (verdict->words[0]) {
    case AGREED: return 0;
    case ABSENT:
        return clique_refuse("hvdlite.jax: rank %d did not come to the first collective of its %d "
                             "ranks within %g s: its program uses other ranks first, has ended, or "
                             "is late; HVDLITE_STALL_SHUTDOWN_TIME_SECONDS sets the limit",
                             rank, c->size, job.patience);
    case DIFFERENT:
        return clique_refuse("hvdlite.jax: rank %d has another list of the ranks of this "
                             "collective: the processes run different programs",
                             rank);
    default:
        return clique_refuse("hvdlite.jax: rank %d gave up waiting for the first collective of its "
                             "%d ranks",
                             rank, c->size);
    }
}

/* Messages live as long as the process if a wait ended early: the core may still write to them. */
static struct message *messages_new(int count) {
    struct message *messages = calloc((size_t)count, sizeof *messages);
    if (!messages) clique_refuse("hvdlite.jax: no memory for %d messages", count);
    return messages;
}

static void tell_members(const struct clique *c, const char *stage, struct message *verdict) {
    for (int i = 1; i < c->size; i++) {
        hvd_handle *handle =
            start_message(HVD_SEND, stage, c, c->members[i], c->members[i], verdict);
        if (handle) core.hvd_drop(handle);
    }
}

/* Collects one message of each member. The verdict: AGREED if all are equal to `mine`. */
static bool collect(const struct clique *c, const char *stage, const struct message *mine,
                    int otherwise, struct message *theirs, struct message *verdict) {
    hvd_handle *handles[c->size];
    for (int i = 1; i < c->size; i++)
        handles[i] = start_message(HVD_RECV, stage, c, c->members[i], c->members[i], theirs + i);
    bool sound = true;
    double patience = job.patience;
    for (int i = 1; i < c->size; i++) {
        int ended = message_ended(handles[i], patience);
        sound = sound && ended >= 0;
        if (!ended) patience = 0; /* the others' time is up as well */
        int found = ended <= 0                               ? ABSENT
                    : memcmp(theirs + i, mine, sizeof *mine) ? otherwise
                                                             : AGREED;
        if (found && !verdict->words[0]) *verdict = (struct message){{found, c->members[i]}};
    }
    return sound;
}

static int lead(const struct clique *c, const struct message *list) {
    struct message *m = messages_new(2 * c->size + 2), *verdict = m + 2 * c->size;
    if (!m) return 1;
    bool sound = collect(c, "list", list, DIFFERENT, m, verdict);
    tell_members(c, "verdict", verdict);
    if (!sound) return 1;
    if (verdict->words[0]) return say_verdict(c, verdict);
    sound = collect(c, "answer", &(struct message){{1, 0}}, WITHDRAWN, m + c->size, verdict + 1);
    tell_members(c, "final", verdict + 1);
    return sound ? say_verdict(c, verdict + 1) : 1;
}

static int follow(const struct clique *c, const struct message *list) {
    struct message *m = messages_new(4);
    if (!m) return 1;
    int leader = c->members[0], me = job.rank;
    m[0] = *list;
    hvd_handle *sent = start_message(HVD_SEND, "list", c, me, leader, m);
    hvd_handle *told = start_message(HVD_RECV, "verdict", c, me, leader, m + 1);
    int ended = message_ended(told, job.patience);
    if (sent) core.hvd_drop(sent);
    if (ended < 0) return 1;
    if (ended && m[1].words[0]) return say_verdict(c, m + 1);
    m[2].words[0] = ended; /* 0 withdraws this rank */
    sent = start_message(HVD_SEND, "answer", c, me, leader, m + 2);
    if (sent) core.hvd_drop(sent);
    if (!ended) return say_verdict(c, &(struct message){{ABSENT, leader}});
    told = start_message(HVD_RECV, "final", c, me, leader, m + 3);
    return message_ended(told, NO_LIMIT) < 0 ? 1 : say_verdict(c, m + 3);
}

static bool is_whole(const struct clique *c) {
    bool whole = c->size == job.size;
    for (int i = 0; i < c->size; i++) whole = whole && c->members[i] == i;
    return whole;
}

static struct message list_of(const struct clique *c) {
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int i = 0; i < c->size; i++) hash = (hash ^ (uint64_t)c->members[i]) * 1099511628211u;
    return (struct message){{c->size, (int64_t)hash}};
}

int clique_open(struct clique *c) {
    if (c->state == CLIQUE_OPEN) return 0;
    if (c->state == CLIQUE_REFUSED) return clique_refuse("%s", c->why);
    if (c->state == CLIQUE_WARMING)
        return clique_refuse("hvdlite.jax: a collective while its ranks are being announced");
    if (c->size > 1 && !is_whole(c)) {
        struct message list = list_of(c);
        int failed = c->rank ? follow(c, &list) : lead(c, &list);
        if (!failed) {
            char text[400] = "";
            c->group = job.open(c->members, c->size, c->number, text, sizeof text);
            if (c->group < 0) failed = clique_refuse("hvdlite.jax: %s", text);
        }
        if (failed) {
            c->state = CLIQUE_REFUSED;
            snprintf(c->why, sizeof c->why, "%.500s", clique_failure);
            return 1;
        }
    }
    c->state = CLIQUE_OPEN;
    return 0;
}

/* ---- running ---- */
struct plan {
    struct plan *next;
    hvd_handle *handle;
    int kind, dtype, op;
    int64_t count;
};

static struct plan *plan_of(struct clique *c, const hvd_tensor *t) {
    struct plan **first = &c->plans[(uint64_t)t->dims[0] % PLANS], *p = *first;
    while (p && !(p->kind == t->kind && p->dtype == t->dtype && p->op == t->op &&
                  p->count == t->dims[0]))
        p = p->next;
    if (p) return p;
    hvd_error err = {0};
    hvd_tensor mine = *t;
    mine.name = c->name; /* one a clique: ranks that disagree learn of it at once */
    mine.group = c->group, mine.waited = 1;
    hvd_handle *handle = core.hvd_plan(&mine, &err);
    if (!handle) return clique_fail(&err), NULL;
    if (!(p = malloc(sizeof *p))) return clique_refuse("hvdlite.jax: no memory"), NULL;
    *p = (struct plan){*first, handle, t->kind, t->dtype, t->op, t->dims[0]};
    return *first = p;
}

int clique_run(struct clique *c, const hvd_tensor *t) {
    hvd_error err = {0};
    pthread_mutex_lock(&c->mutex);
    struct plan *p = clique_open(c) ? NULL : plan_of(c, t);
    int failed = !p;
    if (p && !core.hvd_run(p->handle, t->in, t->out, NO_LIMIT) &&
        !(core.hvd_finish(p->handle, NO_LIMIT, &err) && !err.code))
        failed = clique_fail(&err);
    pthread_mutex_unlock(&c->mutex);
    return failed;
}

hvd_handle *clique_start(struct clique *c, const hvd_tensor *t) {
    char name[HVD_MAX_NAME];
    hvd_error err = {0};
    pthread_mutex_lock(&c->mutex);
    int failed = clique_open(c);
    pthread_mutex_unlock(&c->mutex);
    if (failed) return NULL;
    bool sends = t->kind == HVD_SEND;
    snprintf(name, sizeof name, "%s.%d-%d", c->name, sends ? c->rank : t->root,
             sends ? t->root : c->rank);
    hvd_tensor mine = *t;
    mine.name = name, mine.group = c->group;
    hvd_handle *handle = core.hvd_start(&mine, &err);
    if (!handle) clique_fail(&err);
    return handle;
}

int clique_end(hvd_handle *handle) {
    hvd_error err = {0};
    if (!handle) return 1;
    while (!core.hvd_finish(handle, NO_LIMIT, &err)) continue;
    core.hvd_drop(handle);
    return err.code ? clique_fail(&err) : 0;
}
