/* A pass of a window collective: packs tensors into slots, unpacks them, and keeps the position.
 *
 * window.c and window_copies.c share it. Each rank has its own pass; threads that share the rank's
 * work have their own cursors. */
#ifndef HVDLITE_COLLECTIVES_WINDOW_PASS_H
#define HVDLITE_COLLECTIVES_WINDOW_PASS_H

#include "collectives/algorithm.h"
#include "shm/window.h"

/* A position in the tensors of the batch. */
struct cursor {
    size_t tensor, at; /* index of the tensor; offset in the tensor */
};

struct pass {
    const struct comm *comm;
    const struct coll_args *args;
    struct window *w;
    size_t rounds;
    int first, team;     /* first local rank of this rank's team; number of ranks in each team */
    struct cursor at[4]; /* positions of the stages: staging, reducing, spreading and taking */
};

static inline struct pass open_pass(const struct comm *comm, const struct coll_args *args,
                                    size_t longest) {
    return (struct pass){.comm = comm,
                         .args = args,
                         .w = comm->window,
                         .team = comm->window->n,
                         .rounds = coll_segments(longest, WINDOW_SLOT)};
}

static inline char *slot_of(const struct pass *p, int local_rank, uint64_t round) {
    return window_slot(p->w, local_rank, round);
}

/* Contiguous bytes of one tensor. */
struct span {
    const struct coll_tensor *tensor;
    size_t at, bytes;
};

/* Returns the next span, of at most `most` bytes, and moves the cursor to the span's end. */
static inline struct span next_span(const struct pass *p, struct cursor *c, size_t most) {
    const struct coll_tensor *tensor = &p->args->tensors[c->tensor];
    size_t left = tensor->bytes - c->at;
    struct span span = {tensor, c->at, left < most ? left : most};
    c->at += span.bytes;
    if (c->at == tensor->bytes) *c = (struct cursor){c->tensor + 1, 0};
    return span;
}

/* Packs the next `bytes` of the tensors into `to`. */
static inline void pack(const struct pass *p, struct cursor *c, char *to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct span span = next_span(p, c, bytes - done);
        lines_copy(to + done, span.tensor->in + span.at, span.bytes);
        done += span.bytes;
    }
}

static inline void skip(const struct pass *p, struct cursor *c, size_t bytes) {
    for (size_t done = 0; done < bytes;) done += next_span(p, c, bytes - done).bytes;
}

/* Copies from a slot. With two ranks, takes over the slot's cache lines (lines.c), because no third
 * rank reads them. */
static inline void take_copy(const struct pass *p, void *to, char *from, size_t bytes) {
    if (p->w->n == 2)
        lines_copy_over(to, from, bytes);
    else
        lines_copy(to, from, bytes);
}

static inline void unpack(const struct pass *p, struct cursor *c, char *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct span span = next_span(p, c, bytes - done);
        take_copy(p, span.tensor->out + span.at, from + done, span.bytes);
        done += span.bytes;
    }
}

/* Returns the number of bytes of round k. */
static inline size_t round_bytes(const struct pass *p, size_t k) {
    return coll_length(coll_segment((struct coll_range){0, p->args->bytes}, WINDOW_SLOT, k));
}

#endif
