/* A coordinator, what ranks tell it, and its decoded decisions. */
#ifndef HVDLITE_COORDINATOR_CASE_H
#define HVDLITE_COORDINATOR_CASE_H

#include "requests.h"

#include "negotiation/coordinator.h"

enum { MOST_DECIDED = 64 };

/* An item with its own copy of the rows. */
struct decision {
    struct wire_item item;
    int64_t rows[16];
};

struct scene {
    struct coordinator *c;
    struct wire_writer out;
    struct decision got[MOST_DECIDED];
    int n;
};

static inline void scene_open(struct scene *s, struct coordinator_config config) {
    memset(s, 0, sizeof *s);
    s->c = coordinator_new(&config);
    REQUIRE(s->c != NULL);
}

static inline void scene_close(struct scene *s) {
    coordinator_free(s->c);
    wire_free(&s->out);
}

static inline void says(struct scene *s, int rank, struct request r, double now) {
    hvd_error err = {0};
    CHECK_OK(coordinator_request(s->c, rank, &r, now, &err), err);
}

static inline void hits(struct scene *s, int rank, uint64_t id, double now) {
    hvd_error err = {0};
    CHECK_OK(coordinator_hit(s->c, rank, id, now, &s->out, &err), err);
}

static inline void all_say(struct scene *s, int ranks, struct request r) {
    for (int i = 0; i < ranks; i++) says(s, i, r, 0);
}

/* Decides and decodes all that was written since the last call. Returns the number of items. */
static inline int decide(struct scene *s, double now) {
    hvd_error err = {0};
    struct wire_reader r;
    bool more = true;
    s->n = 0;
    CHECK_OK(coordinator_decide(s->c, now, &s->out, &err), err);
    if (!s->out.size) return 0;
    CHECK_OK(wire_open(&r, s->out.data, s->out.size, &err), err);
    while (s->n < MOST_DECIDED) {
        struct decision *d = &s->got[s->n];
        d->item = (struct wire_item){.type = WIRE_RUN};
        if (!CHECK_OK(wire_next(&r, &d->item, &more, &err), err) || !more) break;
        if ((d->item.type == WIRE_TENSOR || d->item.type == WIRE_FAIL) && d->item.nrows)
            memcpy(d->rows, d->item.rows, d->item.nrows * sizeof *d->rows);
        s->n++;
    }
    wire_reader_free(&r);
    wire_reset(&s->out);
    return s->n;
}

/* The decisions in short: "Ta Tb R" for two tensors by name and a RUN, "T#5" by id, "Ta:0-64" for a
 * piece of it, "Fa", "S", "B". */
static inline const char *in_short(struct scene *s, char *text, size_t size) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < s->n && used < size; i++) {
        const struct wire_item *item = &s->got[i].item;
        const char *gap = i ? " " : "", *name = item->request.name;
        char *at = text + used;
        size_t room = size - used;
        switch (item->type) {
        case WIRE_TENSOR:
            used += (size_t)(*name ? snprintf(at, room, "%sT%s", gap, name)
                                   : snprintf(at, room, "%sT#%d", gap, (int)item->id));
            if (item->cut && used < size)
                used += (size_t)snprintf(text + used, size - used, ":%d-%d", (int)item->begin,
                                         (int)item->end);
            break;
        case WIRE_FAIL: used += (size_t)snprintf(at, room, "%sF%s", gap, name); break;
        case WIRE_RUN: used += (size_t)snprintf(at, room, "%sR", gap); break;
        case WIRE_RESEND: used += (size_t)snprintf(at, room, "%sS%d", gap, item->rank); break;
        case WIRE_BYE: used += (size_t)snprintf(at, room, "%sB", gap); break;
        default: used += (size_t)snprintf(at, room, "%s?", gap);
        }
    }
    return text;
}

/* The texts reported since the last call, in a row, and their number. */
struct reports {
    char text[8][1024];
    int n;
};

static inline void add_report(void *arg, const char *text) {
    struct reports *r = arg;
    if (r->n < 8) snprintf(r->text[r->n], sizeof r->text[r->n], "%s", text);
    r->n++;
}

static inline int look(struct scene *s, double now, struct reports *r) {
    r->n = 0;
    coordinator_stalled(s->c, now, add_report, r);
    return r->n;
}

/* Rank 0 has run a batch. */
static inline void finishes(struct scene *s, double now) { coordinator_finished(s->c, now); }

#define CHECK_DECIDES(scene, now, expected)                                                        \
    do {                                                                                           \
        char decided_[1024];                                                                       \
        decide(scene, now);                                                                        \
        CHECK_TEXT(in_short(scene, decided_, sizeof decided_), expected);                          \
    } while (0)

#endif
