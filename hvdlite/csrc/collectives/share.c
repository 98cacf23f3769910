/* Runs a collective's large work in parts, on the rank's helper threads. */
#include "collectives/algorithm.h"

#include <string.h>

struct shared {
    struct coll_range range;
    coll_work *work;
    const void *arg;
};

static void do_part(const void *arg, int part, int parts) {
    const struct shared *s = arg;
    s->work(s->arg, coll_part_of(s->range, part, parts));
}

void coll_share(const struct comm *comm, size_t bytes, struct coll_range range, coll_work *work,
                const void *arg) {
    helpers_do(comm_helpers(comm), bytes, do_part, &(struct shared){range, work, arg});
}

struct copy {
    char *to;
    const char *from;
};

static void copy_range(const void *arg, struct coll_range range) {
    const struct copy *c = arg;
    memcpy(c->to + range.begin, c->from + range.begin, coll_length(range));
}

void coll_copy(const struct comm *comm, void *to, const void *from, size_t bytes) {
    struct copy copy = {to, from};
    if (bytes) coll_share(comm, bytes, (struct coll_range){0, bytes}, copy_range, &copy);
}

/* ---- kernels: the ranges count elements ---- */

struct kernel_call {
    const struct reduce_kernels *k;
    char *out;
    const char *a, *b;
    double scale;
    struct reduce_final final;
};

static void widen_range(const void *arg, struct coll_range range) {
    const struct kernel_call *c = arg;
    c->k->widen(c->out + range.begin * c->k->wide, c->a + range.begin * c->k->size,
                coll_length(range), c->scale);
}

void coll_widen(const struct comm *comm, const struct reduce_kernels *k, void *wide, const void *in,
                size_t n, double scale) {
    struct kernel_call call = {.k = k, .out = wide, .a = in, .scale = scale};
    coll_share(comm, n * k->wide, (struct coll_range){0, n}, widen_range, &call);
}

static void combine_range(const void *arg, struct coll_range range) {
    const struct kernel_call *c = arg;
    size_t at = range.begin * c->k->wide;
    c->k->combine_wide(c->out + at, c->a + at, c->b + at, coll_length(range));
}

void coll_combine_wide(const struct comm *comm, const struct reduce_kernels *k, void *out,
                       const void *a, const void *b, size_t n) {
    struct kernel_call call = {.k = k, .out = out, .a = a, .b = b};
    coll_share(comm, 2 * n * k->wide, (struct coll_range){0, n}, combine_range, &call);
}

static void narrow_range(const void *arg, struct coll_range range) {
    const struct kernel_call *c = arg;
    c->k->narrow(c->out + range.begin * c->k->size, c->a + range.begin * c->k->wide,
                 coll_length(range), c->final);
}

void coll_narrow(const struct comm *comm, const struct reduce_kernels *k, void *out,
                 const void *wide, size_t n, struct reduce_final final) {
    struct kernel_call call = {.k = k, .out = out, .a = wide, .final = final};
    coll_share(comm, n * k->wide, (struct coll_range){0, n}, narrow_range, &call);
}
