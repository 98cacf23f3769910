/* The list of tensors that some ranks have not submitted yet, and its report. */
#include "negotiation/pending.h"

#include <stdlib.h>
#include <string.h>

int waiting_add(struct waiting *w, const struct request *request, const struct map_node *name,
                double now, struct pending **out, hvd_error *err) {
    struct pending *p = pending_new(request, w->size, w->job_ranks, now);
    if (!p) return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", request->name);
    p->node = map_node_like(name, p->request.name, p);
    int code = map_put(&w->names, &p->node, err);
    if (code) {
        pending_free(p);
        return code;
    }
    p->older = w->last;
    *(w->last ? &w->last->next : &w->first) = p;
    w->last = p;
    if (!w->unseen) w->unseen = p;
    *out = p;
    return HVD_OK;
}

void waiting_remove(struct waiting *w, struct pending *p) {
    if (w->unseen == p) w->unseen = p->next;
    *(p->next ? &p->next->older : &w->last) = p->older;
    *(p->older ? &p->older->next : &w->first) = p->next;
    map_remove(&w->names, &p->node);
}

void waiting_free(struct waiting *w) {
    pending_free_all(w->first);
    map_clear(&w->names);
    *w = (struct waiting){0};
}

const struct pending **waiting_of_ranks(const struct waiting *w) {
    const struct pending **oldest = calloc((size_t)w->size, sizeof *oldest);
    int found = 0;
    for (const struct pending *p = w->first; oldest && p && found < w->size; p = p->next) {
        for (int i = 0; i < w->size; i++) {
            if (oldest[i] || !p->submitted[i]) continue;
            oldest[i] = p;
            found++;
        }
    }
    return oldest;
}

/* ---- reports ---- */

/* Orders tensors by the ranks that they wait for, then by age, the oldest first. */
static int by_missing(const void *a, const void *b) {
    const struct pending *p = *(struct pending *const *)a, *q = *(struct pending *const *)b;
    int order = memcmp(p->submitted, q->submitted, (size_t)p->size * sizeof *p->submitted);
    return order ? order : (p->order > q->order) - (p->order < q->order);
}

static bool is_unreported(const struct pending *p) {
    return !p->warned && p->request.kind != HVD_JOIN;
}

static size_t count_unreported(const struct waiting *w, double since, bool *late) {
    size_t n = 0;
    *late = false;
    for (const struct pending *p = w->first; p; p = p->next) {
        n += is_unreported(p);
        *late |= is_unreported(p) && p->since < since;
    }
    return n;
}

struct reporter {
    const struct pending **oldest; /* array by rank, from waiting_of_ranks */
    const bool *silent;
    double now, since; /* tensors that began to wait before `since` are reported */
    waiting_text *report;
    void *arg;
};

/* Makes one report for all tensors that wait for the same ranks, with the oldest tensor's name. */
static void report_sorted(struct pending **sorted, size_t n, const struct reporter *r) {
    for (size_t i = 0, end; i < n; i = end) {
        size_t bytes = (size_t)sorted[i]->size * sizeof(bool);
        for (end = i + 1; end < n && !memcmp(sorted[end]->submitted, sorted[i]->submitted, bytes);)
            end++;
        if (sorted[i]->since >= r->since) continue;
        char text[1024];
        pending_explain_wait(sorted[i], end - i - 1, r->oldest, r->silent, r->now, text,
                             sizeof text);
        for (size_t k = i; k < end; k++) sorted[k]->warned = true;
        r->report(r->arg, text);
    }
}

void waiting_report(struct waiting *w, const bool *silent, double now, double limit,
                    waiting_text *report, void *arg) {
    bool late;
    size_t n = count_unreported(w, now - limit, &late), i = 0;
    if (!late) return;
    struct pending **sorted = malloc(n * sizeof(struct pending *));
    const struct pending **oldest = waiting_of_ranks(w);
    for (struct pending *p = w->first; sorted && p; p = p->next)
        if (is_unreported(p)) sorted[i++] = p;
    if (sorted && oldest) { /* if memory is short, nothing is reported */
        qsort(sorted, n, sizeof(struct pending *), by_missing);
        report_sorted(sorted, n, &(struct reporter){oldest, silent, now, now - limit, report, arg});
    }
    free(sorted);
    free(oldest);
}
