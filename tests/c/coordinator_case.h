/* A notation for tests of the coordinator: short words for what ranks tell the coordinator, and for
 * what the coordinator decides. */
#ifndef HVDLITE_COORDINATOR_CASE_H
#define HVDLITE_COORDINATOR_CASE_H

#include "requests.h"

#include "negotiation/coordinator.h"

#include <ctype.h>
#include <inttypes.h>

enum { MOST_DECIDED = 64 };

/* A decoded item with its own copy of the rows. */
struct decision {
    struct wire_item item;
    int64_t rows[16];
};

struct scene {
    struct coordinator *c;
    int size;     /* number of ranks */
    double now;   /* seconds */
    bool *silent; /* by rank: true if the rank does not answer */
    /* ids['a']: the newest id of the tensor whose name begins with a; ids['A']: its previous id;
     * ids['!']: an id that the coordinator has never given */
    uint64_t ids[128];
    uint64_t newest; /* the newest id before the last decision */
    struct wire_writer out;
    struct decision got[MOST_DECIDED];
    int n;
};

static inline void scene_open(struct scene *s, struct coordinator_config config) {
    memset(s, 0, sizeof *s);
    s->size = config.size;
    s->ids['!'] = 12345;
    s->c = coordinator_new(&config);
    s->silent = calloc((size_t)s->size, sizeof *s->silent);
    REQUIRE(s->c && s->silent);
}

static inline void scene_close(struct scene *s) {
    coordinator_free(s->c);
    free(s->silent);
    wire_free(&s->out);
}

static inline void says(struct scene *s, int rank, struct request r, double now) {
    OK(coordinator_request(s->c, rank, &r, "", now, ERR));
}

static inline void hits(struct scene *s, int rank, uint64_t id, double now) {
    OK(coordinator_hit(s->c, rank, id, now, &s->out, ERR));
}

static inline void all_say(struct scene *s, int ranks, struct request r) {
    for (int i = 0; i < ranks; i++) says(s, i, r, 0);
}

static inline void note_id(struct scene *s, const struct wire_item *item) {
    int letter = item->request.name[0];
    if (!letter || !item->id) return;
    s->ids[toupper(letter)] = s->ids[letter];
    s->ids[letter] = item->id;
}

/* Lets the coordinator decide, and decodes all items that it has written since the last call.
 * Returns the number of items. */
static inline int decide(struct scene *s, double now) {
    struct wire_reader r;
    bool more = true;
    s->n = 0;
    for (int i = 0; i < 128; i++)
        if (i != '!' && s->ids[i] > s->newest) s->newest = s->ids[i];
    OK(coordinator_decide(s->c, now, s->silent, &s->out, ERR));
    if (!s->out.size) return 0;
    OK(wire_open(&r, s->out.data, s->out.size, ERR));
    while (s->n < MOST_DECIDED) {
        struct decision *d = &s->got[s->n];
        d->item = (struct wire_item){.type = WIRE_RUN};
        if (!OK(wire_next(&r, &d->item, &more, ERR)) || !more) break;
        if ((d->item.type == WIRE_TENSOR || d->item.type == WIRE_FAIL) && d->item.nrows)
            memcpy(d->rows, d->item.rows, d->item.nrows * sizeof *d->rows);
        if (d->item.type == WIRE_TENSOR) note_id(s, &d->item);
        s->n++;
    }
    wire_reader_free(&r);
    wire_reset(&s->out);
    return s->n;
}

/* Returns the first letter of the name of the tensor with this id; 0: no tensor has this id. */
static inline int letter_of(const struct scene *s, uint64_t id) {
    for (int i = 'a'; i <= 'z'; i++)
        if (s->ids[i] == id) return i;
    return 0;
}

/* Writes the decisions in short: "Ta Tb R" for two tensors by name and a RUN, "T#a" for a tensor by
 * the id of a, "Ta:0-64" for a piece of a, "Fa" for a FAIL, "S1" for a RESEND to rank 1, "B" for
 * BYE. */
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
                                   : snprintf(at, room, "%sT#%c", gap, letter_of(s, item->id)));
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

/* The warnings about stalls from the last call of look, and their number. */
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
    coordinator_stalled(s->c, now, NULL, add_report, r);
    return r->n;
}

/* Returns a request. "a": a sum named a of 3 elements; "a:9": of 9 elements; "a:9x2@5": an
 * allgather of 9 rows of 2 elements with priority 5; "a[0]/2": the first tensor of a grouped call
 * of two. */
static inline struct request request_in_short(const char *text) {
    char name[32];
    int rows = 3, columns = 0, priority = 0;
    const char *count = strchr(text, ':'), *at = strchr(text, '@'), *of = strchr(text, '/');
    REQUIRE(sscanf(text, "%31[^:@/]", name) == 1);
    REQUIRE(!count || sscanf(count, ":%dx%d", &rows, &columns) >= 1);
    REQUIRE(!at || sscanf(at, "@%d", &priority) == 1);
    struct request r = columns ? gather_of(name, rows, columns) : request_of(name, rows);
    r.priority = priority;
    r.grouped = of ? (int32_t)strtol(of + 1, NULL, 10) : 0;
    return r;
}

/* Executes an action of a rank, written as in a story without the rank's number: "+a" submits the
 * tensor a (see happens). */
static inline void acts(struct scene *s, int rank, const char *what) {
    if (*what == '+') return says(s, rank, request_in_short(what + 1), s->now);
    if (*what == '#') return hits(s, rank, s->ids[what[1] & 127], s->now);
    if (*what == 'j')
        return says(s, rank, (struct request){.kind = HVD_JOIN, .name = "join", .dtype = HVD_INT64},
                    s->now);
    REQUIRE(*what == '-');
    coordinator_leave(s->c, rank, "out of data");
}

/* Executes one word of a story:
 *     0+a   rank 0 submits a (request_in_short); *+a: each rank does
 *     0#a   rank 0 submits a with the id of the last decision on a; 0#A: with the id before that;
 *           0#!: with an id that the coordinator has not given
 *     0j    rank 0 joins
 *     0-    rank 0 leaves; its reason is "out of data"
 *     f     rank 0 has finished a batch
 *     s=1   from now on rank 1 does not answer
 *     t=9   from now on the time is 9 seconds */
static inline void happens(struct scene *s, const char *word) {
    if (*word == 'f') return coordinator_finished(s->c, s->now);
    if (*word == 's') {
        s->silent[atoi(word + 2)] = true;
        return;
    }
    if (*word == 't') {
        REQUIRE(sscanf(word, "t=%lf", &s->now) == 1);
        return;
    }
    char *what = NULL;
    int first = *word == '*' ? 0 : (int)strtol(word, &what, 10);
    for (int rank = first; rank <= (what ? first : s->size - 1); rank++)
        acts(s, rank, what ? what : word + 1);
}

/* Checks one property of a decision. "new": its id is new; "no id": it has no id; "whole": it has
 * the whole request; "rows 0 2": it has these rows; any other text must be part of its error. */
static inline void tells(const char *file, int line, struct scene *s, const char *what) {
    const struct decision *d = &s->got[0];
    if (!strcmp(what, "new")) {
        check_report(d->item.id > s->newest, file, line, "an old id");
    } else if (!strcmp(what, "no id")) {
        check_int(file, line, "id", (long long)d->item.id, 0);
    } else if (!strcmp(what, "whole")) {
        check_report(d->item.whole && !d->item.direct, file, line, "not whole");
    } else if (!strncmp(what, "rows ", 5)) {
        char got[200] = "rows", *at = got + 4;
        for (uint32_t i = 0; i < d->item.nrows && i < 16; i++)
            at += sprintf(at, " %" PRId64, d->rows[i]);
        check_same_text(file, line, got, what);
    } else {
        check_part(file, line, d->item.error.text, what);
    }
}

static inline char *trimmed(char *text) {
    for (char *end = text + strlen(text); end > text && end[-1] == ' ';) *--end = 0;
    return text + strspn(text, " ");
}

/* Runs a story, a text of sentences "actions -> decisions ? properties" with semicolons between:
 * executes the actions of ranks (happens), compares the coordinator's decisions (in_short), and
 * checks the properties of the first decision (tells). */
static inline void story(const char *file, int line, struct scene *s, const char *text) {
    char copy[1500], decided[1024], *next, *words, *word, *what;
    REQUIRE(strlen(text) < sizeof copy);
    for (char *sentence = strtok_r(strcpy(copy, text), ";", &next); sentence;
         sentence = strtok_r(NULL, ";", &next)) {
        char *expected = strstr(sentence, "->"), *why = strchr(sentence, '?');
        if (why) *why++ = 0;
        if (expected) *expected = 0, expected += 2;
        for (word = strtok_r(sentence, " ", &words); word; word = strtok_r(NULL, " ", &words))
            happens(s, word);
        if (!expected) continue;
        decide(s, s->now);
        check_same_text(file, line, in_short(s, decided, sizeof decided), trimmed(expected));
        for (what = why ? strtok_r(why, "&", &words) : NULL; what;
             what = strtok_r(NULL, "&", &words))
            tells(file, line, s, trimmed(what));
    }
}

#define STORY(scene, text) story(__FILE__, __LINE__, scene, text)

/* A configuration with this number of ranks and these options. */
#define CONFIG(ranks, ...) ((struct coordinator_config){.size = (ranks), .options = {__VA_ARGS__}})

/* Defines a test with a scene `s`. */
#define SCENE(name, config) TEST_ON(name, struct scene, s, scene_open(s, config), scene_close(s))

/* Runs a story (see story()) with a new coordinator. */
#define CHECK_STORY(config, text)                                                                  \
    do {                                                                                           \
        struct scene scene_;                                                                       \
        scene_open(&scene_, config);                                                               \
        STORY(&scene_, text);                                                                      \
        scene_close(&scene_);                                                                      \
    } while (0)

#endif
