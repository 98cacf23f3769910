#include "collectives/coll.h"

#include "collectives/algorithm.h"
#include "collectives/costs.h"
#include "transport/comm.h"

#include <stdio.h>

static bool on_window(const struct comm *comm, const struct coll_args *args) {
    return comm->window && !args->adasum;
}

static bool in_region(const struct comm *comm, const struct coll_args *args) {
    return on_window(comm, args) && args->memory;
}

/* A team passes its sums to the next team as values of the dtype, so the dtype must be its own
 * accumulator. The prescale must be 1, because the next team would apply it to the sums again. */
static bool in_teams(const struct comm *comm, const struct coll_args *args) {
    const struct reduce_kernels *k = args->reduce;
    return on_window(comm, args) && comm->window->team && args->bytes >= comm->window->team_bytes &&
           k->size == k->wide && k->size == k->result && args->prescale == 1;
}

/* Returns true if there are several hosts, at least one host has several ranks, and the ranks of
 * each host share a window. */
static bool by_hosts(const struct comm *comm, const struct coll_args *args) {
    const struct layout *l = comm->layout;
    return l && l->windows && l->hosts > 1 && comm->size > l->hosts && !args->adasum;
}

static bool scales(const struct coll_args *args) {
    return args->prescale != 1 || args->final.scale != 1 || args->final.divisor != 1;
}

/* Returns true if the dtype can store the partial result of a host. */
static bool reduces_by_hosts(const struct comm *comm, const struct coll_args *args) {
    const struct reduce_kernels *k = args->reduce;
    bool holds = k->wide == k->size || k->partial == REDUCE_ROUNDS ||
                 (k->partial == REDUCE_WRAPS && !scales(args));
    return by_hosts(comm, args) && k->result == k->size && holds;
}

static bool in_regions(const struct comm *comm, const struct coll_args *args) {
    return reduces_by_hosts(comm, args) && args->memory;
}

static bool by_adasum(const struct comm *comm, const struct coll_args *args) {
    return comm && args->adasum;
}

static bool by_kernels(const struct comm *comm, const struct coll_args *args) {
    return comm && !args->adasum;
}

static bool in_few_steps(const struct comm *comm, const struct coll_args *args) {
    return by_kernels(comm, args) &&
           coll_cheapest(comm, args->reduce, args->bytes) == COLL_DOUBLING;
}

static bool in_log_rounds(const struct comm *comm, const struct coll_args *args) {
    return by_kernels(comm, args) &&
           coll_cheapest(comm, args->reduce, args->bytes) == COLL_CIRCULANT;
}

static bool by_tree(const struct comm *comm, const struct coll_args *args) {
    return comm && coll_tree_is_cheaper(comm, args->bytes);
}

/* Returns true if the dtype is its own accumulator. Otherwise each step would round the sum. */
static bool own_accumulator(const struct comm *comm, const struct coll_args *args) {
    return by_kernels(comm, args) && args->reduce->size == args->reduce->wide;
}

static const struct coll_algorithm TABLE[] = {
#define AS_ROW(...) {__VA_ARGS__},
    ALGORITHMS(AS_ROW)};
enum { ROWS = sizeof TABLE / sizeof *TABLE };

const struct coll_algorithm *coll_table(size_t *rows) {
    *rows = ROWS;
    return TABLE;
}

bool coll_takes(const struct coll_algorithm *row, const struct comm *comm,
                const struct coll_args *args) {
    return row->kind == args->kind && (!row->takes || row->takes(comm, args));
}

const struct coll_algorithm *coll_choose(const struct comm *comm, const struct coll_args *args) {
    const struct coll_algorithm *row = TABLE;
    while (!coll_takes(row, comm, args)) row++;
    return row;
}

/* Tries the powers of two from 1 KiB to 1 GiB. */
void coll_choices_text(const struct comm *comm, char *text, size_t size) {
    struct coll_args args = {.kind = HVD_ALLREDUCE, .reduce = reduce_kernels(HVD_FLOAT32, HVD_SUM)};
    const struct coll_algorithm *last = NULL;
    size_t at = 0;
    *text = 0;
    for (args.bytes = 1024; args.bytes <= (size_t)1 << 30 && at < size; args.bytes *= 2) {
        const struct coll_algorithm *row = coll_choose(comm, &args);
        if (last && row != last)
            at += (size_t)snprintf(text + at, size - at, "%s up to %zu KiB, ", last->name,
                                   args.bytes / 2048);
        last = row;
    }
    if (at < size) snprintf(text + at, size - at, "%s%s", at ? "then " : "", last->name);
}

/* A window adds in the order of ranks. Recursive doubling, of all ranks or of one rank per host,
 * adds in the order of its steps. A ring starts each chunk at a different rank, so the order of
 * additions depends on the chunk. */
size_t coll_alike(const struct comm *comm) {
    if (comm->window || comm->size == 1) return SIZE_MAX;
    size_t all = coll_doubling_bytes(comm), lane = all;
    if (comm->layout && comm->layout->lane.size > 1)
        lane = coll_doubling_bytes(&comm->layout->lane);
    return lane < all ? lane : all;
}

static void scale_range(const void *arg, struct coll_range range) {
    const struct coll_args *args = arg;
    const char *in = (const char *)(args->in ? args->in : args->data) + range.begin;
    reduce_all(args->reduce, (char *)args->data + range.begin, &in, 1,
               coll_length(range) / args->reduce->size, args->prescale, args->final);
}

/* For a single rank: the scaled data is the result. */
static int run_alone(const struct comm *comm, const struct coll_args *args) {
    if (args->listed) return HVD_OK;
    if (args->reduce && scales(args))
        coll_share(comm, args->bytes, (struct coll_range){0, args->bytes}, scale_range, args);
    else if (args->in && args->in != args->data)
        coll_copy(comm, args->data, args->in, args->bytes);
    return HVD_OK;
}

int coll_run(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    if (!args->bytes) return HVD_OK;
    if (comm->size == 1) return run_alone(comm, args);
    const struct coll_algorithm *row = coll_choose(comm, args);
    int code = row->run(comm, args, err);
    return code ? error_while(err, "moving %zu bytes (%s)", args->bytes, row->name) : HVD_OK;
}
