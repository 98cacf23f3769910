#include "negotiation/ready.h"

#include "negotiation/fusion.h"

#include <stdlib.h>
#include <string.h>

/* Makes room for one more tensor. If decided tensors use more than half of the array, moves the
 * other tensors to the beginning; else enlarges the array. */
static int make_room(struct ready *r, hvd_error *err) {
    if (r->first > r->n / 2) {
        memmove(r->of, r->of + r->first, (r->n - r->first) * sizeof *r->of);
        r->n -= r->first;
        r->checked -= r->first;
        r->first = 0;
        return HVD_OK;
    }
    size_t capacity = 2 * r->capacity + 16;
    struct pending **of = realloc(r->of, capacity * sizeof *of);
    if (!of) return error_set(err, HVD_NO_MEMORY, "no memory for %zu ready tensors", capacity);
    r->of = of;
    r->capacity = capacity;
    return HVD_OK;
}

int ready_add(struct ready *r, struct pending *p, hvd_error *err) {
    if (r->n == r->capacity) HVD_TRY(make_room(r, err));
    r->of[r->n++] = p;
    if (p->request.priority > r->highest) r->highest = p->request.priority;
    r->changed = true;
    return HVD_OK;
}

void ready_free(struct ready *r) {
    for (size_t i = r->first; i < r->n; i++) pending_free(r->of[i]);
    free(r->of);
}

void ready_sort(struct ready *r) {
    if (r->checked < r->n) pending_sort(r->of + r->first, r->n - r->first);
    r->checked = r->n;
}

bool ready_can_be_overtaken(const struct ready *r) {
    return r->checked > r->first && r->of[r->checked - 1]->request.priority < r->highest;
}

/* ---- pieces ---- */

/* Returns the end of the tensor's piece that begins at `begin`. A tensor is not cut if a joined
 * rank makes zeros for it, because that rank keeps the zeros for only one batch. The last piece may
 * be 1.5 times as long as the others, because a short rest is not worth a batch. */
static size_t end_of_piece(const struct pending *p, size_t begin, size_t longest) {
    /* ALIGNED: a page. LEAST: shorter pieces do not take less time, because of the latency. */
    enum { ALIGNED = 4096, LEAST = 64 << 10 };
    size_t bytes = request_bytes(&p->request), length = longest - longest % ALIGNED;
    if (length < LEAST) length = LEAST;
    bool whole = p->joined || !request_can_be_cut(&p->request);
    if (whole || (bytes - begin) / 3 <= length / 2) return bytes;
    return begin + length;
}

/* Where the next piece of a tensor begins: at a byte of tensor i. */
struct cursor {
    size_t i, begin;
};

static struct piece take_piece(const struct ready *r, struct cursor *at, size_t longest) {
    struct pending *p = r->of[at->i];
    size_t begin = at->begin > p->decided ? at->begin : p->decided;
    struct piece piece = {.tensor = p, .begin = begin, .end = end_of_piece(p, begin, longest)};
    *at = piece.end < request_bytes(&p->request) ? (struct cursor){at->i, piece.end}
                                                 : (struct cursor){at->i + 1, 0};
    return piece;
}

/* Cuts the first tensors into pieces, until these have `most` bytes. If `pieces` is NULL, only
 * counts the pieces. *seen: index of the first tensor that is not included. */
static size_t list_pieces(const struct ready *r, size_t most, size_t longest, struct piece *pieces,
                          size_t *seen) {
    struct cursor at = {r->first, 0};
    size_t n = 0, bytes = 0;
    while (at.i < r->checked && bytes < most) {
        struct piece piece = take_piece(r, &at, longest);
        bytes += piece.end - piece.begin;
        if (pieces) pieces[n] = piece;
        n++;
    }
    *seen = at.begin ? at.i + 1 : at.i;
    return n;
}

/* ---- batches ---- */

size_t piece_bytes(const struct piece *first) {
    size_t bytes = 0;
    for (const struct piece *piece = first; piece; piece = piece->next)
        bytes += piece->end - piece->begin;
    return bytes;
}

/* Links the parts of tensors (pieces) in the same batch. first[batch]: beginning of the list. */
static void link_batches(struct piece *pieces, size_t n, const size_t *batch,
                         struct piece **first) {
    for (size_t i = n; i-- > 0;) {
        pieces[i].next = first[batch[i]];
        first[batch[i]] = &pieces[i];
    }
}

int ready_plan(const struct ready *r, size_t most, size_t longest, size_t threshold,
               struct ready_plan *plan, hvd_error *err) {
    size_t seen, n = list_pieces(r, most, longest, NULL, &seen);
    struct piece *pieces = calloc(n, sizeof *pieces + sizeof(struct fusion_item) +
                                         sizeof *plan->first + sizeof(size_t));
    *plan = (struct ready_plan){.seen = seen, .memory = pieces};
    if (!n) return HVD_OK;
    if (!pieces) return error_set(err, HVD_NO_MEMORY, "no memory to plan %zu tensors", n);
    struct fusion_item *items = (struct fusion_item *)(pieces + n);
    plan->first = (struct piece **)(items + n);
    size_t *batch = (size_t *)(plan->first + n);
    list_pieces(r, most, longest, pieces, &seen);
    for (size_t i = 0; i < n; i++)
        items[i] = (struct fusion_item){&pieces[i].tensor->request, pieces[i].end - pieces[i].begin,
                                        i && pieces[i].tensor == pieces[i - 1].tensor};
    plan->n = fusion_plan(items, n, threshold < longest ? threshold : longest, batch);
    link_batches(pieces, n, batch, plan->first);
    return HVD_OK;
}

/* ---- decided tensors ---- */

void ready_decided(const struct piece *piece) {
    piece->tensor->decided = piece->end;
    piece->tensor->done = piece->end == request_bytes(&piece->tensor->request);
}

/* Keeps the unfinished planned tensors, in front of the tensors that were not planned. */
void ready_clean(struct ready *r, const struct ready_plan *plan) {
    size_t end = plan->seen;
    for (size_t i = plan->seen; i-- > r->first;) {
        if (r->of[i]->done)
            pending_free(r->of[i]);
        else
            r->of[--end] = r->of[i];
    }
    r->first = end;
}
