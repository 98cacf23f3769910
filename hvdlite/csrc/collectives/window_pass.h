/* A pass of a window collective: runs the stages of all rounds, packs tensors into slots, unpacks
 * tensors from slots, and keeps the position in the tensors.
 *
 * All window collectives use passes. Each rank has its own pass; threads that share the rank's work
 * have their own cursors. */
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
    size_t segment;      /* bytes that one round moves; in window_parts.c: to each rank */
    struct cursor at[4]; /* by stage (pass_run): its position in the tensors */
};

/* `longest`: bytes of data, of which `segment` bytes go through a slot in each round */
static inline struct pass open_pass(const struct comm *comm, const struct coll_args *args,
                                    size_t longest, size_t segment) {
    return (struct pass){.comm = comm,
                         .args = args,
                         .w = comm->window,
                         .team = comm->window->n,
                         .segment = segment,
                         .rounds = coll_segments(longest, segment)};
}

/* A stage of a round: a wait, then work that threads may share, then flags. The work moves the
 * cursor from the beginning of the round to its end, if the stage uses the tensors. */
struct stage {
    int (*await)(const struct pass *p, size_t k, hvd_error *err);
    void (*work)(const struct pass *p, size_t k, struct cursor *c, int part, int parts);
    void (*done)(const struct pass *p, size_t k);
};

/* Runs n stages of all rounds: step i does stage s of round i - s. `bytes`: how many bytes the
 * largest stage reads or writes in all rounds; helpers share the work if there are enough bytes. */
int pass_run(struct pass *p, const struct stage *stages, size_t n, size_t bytes, hvd_error *err);

/* Raises the flag for a round whose input is in this rank's slot. Also raises WINDOW_REDUCED. No
 * rank waits for it here, but all flags must count the same rounds. */
static inline void raise_input(const struct pass *p, size_t k) {
    window_raise(p->w, WINDOW_STAGED, p->w->rounds + k);
    window_raise(p->w, WINDOW_REDUCED, p->w->rounds + k);
}

static inline void raise_taken(const struct pass *p, size_t k) {
    window_raise(p->w, WINDOW_TAKEN, p->w->rounds + k);
}

static inline int await_slot(const struct pass *p, size_t k, hvd_error *err) {
    return comm_wait_slot(p->comm, p->w->rounds + k, err);
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

/* Copies from a slot of the window. With two ranks, takes over the slot's cache lines (lines.c),
 * because no third rank reads them. */
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

static inline size_t round_bytes(const struct pass *p, size_t k) {
    return coll_length(coll_segment((struct coll_range){0, p->args->bytes}, WINDOW_SLOT, k));
}

#endif
