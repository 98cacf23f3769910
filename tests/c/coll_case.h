/* One collective as a test: fill this rank's memory, run, compare with the serial result.
 *
 * Data repeats with a prime period: a segment in the wrong place shows, and a large expected result
 * costs no more than a copy. */
#ifndef HVDLITE_COLL_CASE_H
#define HVDLITE_COLL_CASE_H

#include "check.h"

#include "collectives/coll.h"
#include "elements.h"
#include "ranks.h"
#include "slab.h"
#include "transport/layout.h"

enum { PERIOD = 1021 };

struct coll_case {
    const struct coll_algorithm *row; /* NULL: coll_run */
    hvd_kind kind;
    int dtype;
    size_t n;           /* elements; in a unit of `parts`; in a row of a reducescatter */
    size_t rows;        /* reducescatter */
    struct scaling how; /* allreduce, reducescatter */
    int root;           /* broadcast */
    bool whole;         /* one tensor instead of two */
    const size_t
        *parts; /* in units of n elements: allgather [rank]; alltoall [from * ranks + to] */
};

/* What one rank keeps between cases. */
struct coll_rank {
    struct ranks *ranks;
    int rank;
    struct scratch scratch, outer;
    unsigned char **data; /* [rank], shared: every rank's result */
    char *mapped[MOST_RANKS];
};

static inline void case_text(const struct coll_case *c, int ranks, char *text, size_t size) {
    snprintf(text, size, "%s of %s, %d ranks, %zu rows, %zu x %s, op %d, scales %g %g, root %d",
             kind_name(c->kind), c->row ? c->row->name : "coll_run", ranks, c->rows, c->n,
             dtype_name(c->dtype), c->how.op, c->how.prescale, c->how.postscale, c->root);
}

/* PERIOD elements: the input of rank r; r < 0: the allreduce's result. */
static inline void fill_tile(const struct coll_case *c, int ranks, int r, unsigned char *tile) {
    for (size_t i = 0; i < PERIOD; i++)
        element_put(c->dtype, tile, i,
                    r < 0 ? reduced_sample(c->dtype, ranks, c->how, i)
                          : sample(c->dtype, c->how.op, r, i));
}

static inline void fill(unsigned char *data, size_t bytes, const unsigned char *tile,
                        size_t period) {
    for (size_t at = 0; at < bytes; at += period)
        memcpy(data + at, tile, bytes - at < period ? bytes - at : period);
}

static inline bool filled(const unsigned char *data, size_t bytes, const unsigned char *tile,
                          size_t period) {
    for (size_t at = 0; at < bytes; at += period)
        if (memcmp(data + at, tile, bytes - at < period ? bytes - at : period) != 0) return false;
    return true;
}

/* Equal within the tolerance, where 1 / divisor was rounded. */
static inline bool nearly_filled(int dtype, const unsigned char *data, size_t n,
                                 const unsigned char *tile) {
    for (size_t i = 0; i < n; i++) {
        double expected = element_get(dtype, tile, i % PERIOD), got = element_get(dtype, data, i);
        if (!(fabs(got - expected) <= sample_tolerance(dtype, expected))) return false;
    }
    return true;
}

/* Within the bound of sums that are rounded on each host and between them (hosts.c). */
static inline bool within_bound(const struct coll_case *c, int ranks, const unsigned char *data,
                                size_t begin, size_t n) {
    double unit = c->dtype == HVD_FLOAT16 ? 0x1p-11 : 0x1p-8;
    double factor = fabs(c->how.prescale * c->how.postscale) * 2.02 * unit;
    if (c->how.op == HVD_AVERAGE) factor /= ranks;
    unsigned char tile[PERIOD * 8];
    fill_tile(c, ranks, -1, tile);
    for (size_t i = 0; i < n; i++) {
        size_t at = (begin + i) % PERIOD;
        double got = element_get(c->dtype, data, i), sizes = 0;
        if (got == element_get(c->dtype, tile, at)) continue;
        double expected = reduced_sample(c->dtype, ranks, c->how, at);
        for (int r = 0; r < ranks; r++) sizes += fabs(sample(c->dtype, c->how.op, r, at));
        if (!(fabs(got - expected) <= sizes * factor)) return false;
    }
    return true;
}

static inline bool rounds_by_hosts(const struct coll_rank *self, const struct coll_case *c) {
    const struct comm *comm = rank_comm(self->ranks, self->rank);
    return comm->hosts < comm->size && comm->hosts > 1 && comm->layout->windows &&
           (c->dtype == HVD_FLOAT16 || c->dtype == HVD_BFLOAT16);
}

/* Cuts the data into two tensors. */
static inline void split_tensors(struct coll_tensor whole[2], const struct coll_args *args,
                                 size_t element) {
    size_t front = args->bytes / element / 3 * element;
    char *data = args->data;
    whole[0] = (struct coll_tensor){.in = data, .out = data, .bytes = front};
    whole[1] =
        (struct coll_tensor){.in = data + front, .out = data + front, .bytes = args->bytes - front};
}

/* Gives the collective the data of every rank of the host as mapped memory. */
static inline void map_all(struct coll_rank *self, const struct comm *host,
                           struct coll_args *args) {
    self->data[self->rank] = args->data;
    ranks_meet(self->ranks);
    for (int i = 0; i < host->size; i++)
        self->mapped[i] = (char *)self->data[host->ranks ? host->ranks[i] : i];
    ranks_meet(self->ranks); /* before the next case writes to `data` */
    args->memory = self->mapped;
}

static inline int case_run(struct coll_rank *self, const struct coll_case *c,
                           struct coll_args *args, hvd_error *err) {
    const struct comm *comm = rank_comm(self->ranks, self->rank);
    args->kind = c->kind;
    args->scratch = &self->scratch;
    args->outer = &self->outer;
    struct coll_tensor whole[2];
    split_tensors(whole, args, dtype_size(c->dtype));
    args->tensors = whole;
    args->ntensors = 2;
    if (c->whole) whole[0].bytes = args->bytes, args->ntensors = 1;
    if (c->row && c->row->run == coll_direct_allreduce && comm->window) map_all(self, comm, args);
    if (c->row && c->row->run == coll_hosts_direct && comm->layout)
        map_all(self, &comm->layout->host, args);
    if (c->kind == HVD_ALLREDUCE || c->kind == HVD_REDUCESCATTER) {
        args->adasum = c->how.op == HVD_ADASUM;
        args->reduce = reduce_kernels((hvd_dtype)c->dtype, (hvd_op)c->how.op);
        args->prescale = c->how.prescale;
        args->final.scale = c->how.postscale;
        args->final.divisor = c->how.op == HVD_AVERAGE ? self->ranks->size : 1;
    }
    args->root = c->root;
    if (c->row && !coll_takes(c->row, comm, args)) return HVD_UNSUPPORTED;
    return c->row ? c->row->run(comm, args, err) : coll_run(comm, args, err);
}

/* All ranks hold the same bits. */
static inline bool same_on_all(struct coll_rank *self, unsigned char *data, size_t bytes) {
    self->data[self->rank] = data;
    ranks_meet(self->ranks);
    bool same = bytes == 0 || memcmp(data, self->data[0], bytes) == 0;
    ranks_meet(self->ranks);
    return same;
}

static inline void check_result(struct coll_rank *self, const struct coll_case *c, bool good,
                                int code, const hvd_error *err) {
    char text[300];
    case_text(c, self->ranks->size, text, sizeof text);
    CHECK_CASE(code == HVD_OK, "%s: %s", text, err->text);
    CHECK_CASE(good, "%s, on rank %d: the result is wrong", text, self->rank);
}

/* An allreduce or a broadcast. */
static inline void check_in_place(struct coll_rank *self, const struct coll_case *c) {
    size_t element = dtype_size(c->dtype), bytes = c->n * element;
    bool reduces = c->kind == HVD_ALLREDUCE;
    unsigned char tile[PERIOD * 8];
    OWN(slab_free) struct slab slab = slab_new(bytes, element);
    fill_tile(c, self->ranks->size, self->rank, tile);
    fill(slab.data, bytes, tile, PERIOD * element);
    struct coll_args args = {.data = slab.data, .bytes = bytes};
    int code = case_run(self, c, &args, ERR);
    if (code != HVD_UNSUPPORTED) {
        fill_tile(c, self->ranks->size, reduces ? -1 : c->root, tile);
        bool rounded = c->dtype == HVD_FLOAT32 || c->dtype == HVD_FLOAT64;
        bool good = reduces && rounds_by_hosts(self, c)
                        ? within_bound(c, self->ranks->size, slab.data, 0, c->n)
                    : reduces && rounded && c->how.op == HVD_AVERAGE
                        ? nearly_filled(c->dtype, slab.data, c->n, tile)
                        : filled(slab.data, bytes, tile, PERIOD * element);
        if (reduces) good &= same_on_all(self, slab.data, bytes);
        check_result(self, c, good, code, ERR);
    }
}

static inline size_t longest_part(const size_t *end, int parts) {
    size_t longest = 0;
    for (int i = 0; i < parts; i++) {
        size_t length = coll_length(coll_part(end, i));
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* Each part begins with the start of its rank's tile. */
static inline bool gathered(const struct coll_case *c, int ranks, const unsigned char *data,
                            const size_t *part_end) {
    unsigned char tile[PERIOD * 8];
    bool good = true;
    for (int r = 0; r < ranks; r++) {
        size_t begin = r ? part_end[r - 1] : 0;
        fill_tile(c, ranks, r, tile);
        good &= filled(data + begin, part_end[r] - begin, tile, PERIOD * dtype_size(c->dtype));
    }
    return good;
}

static inline void check_allgather(struct coll_rank *self, const struct coll_case *c) {
    size_t element = dtype_size(c->dtype), part_end[MOST_RANKS], total = 0;
    for (int r = 0; r < self->ranks->size; r++) part_end[r] = total += c->parts[r] * c->n * element;
    size_t own = c->parts[self->rank] * c->n * element;
    unsigned char tile[PERIOD * 8];
    OWN(slab_free) struct slab in = slab_new(own, element), out = slab_new(total, element);
    fill_tile(c, self->ranks->size, self->rank, tile);
    fill(in.data, own, tile, PERIOD * element);
    memset(out.data, 0x5a, total);
    struct coll_args args = {.data = out.data, .bytes = total, .in = in.data, .part_end = part_end};
    args.longest = longest_part(part_end, self->ranks->size);
    int code = case_run(self, c, &args, ERR);
    if (code != HVD_UNSUPPORTED) {
        check_result(self, c, gathered(c, self->ranks->size, out.data, part_end), code, ERR);
        CHECK(filled(in.data, own, tile, PERIOD * element));
    }
}

/* Element i of the result is element i % PERIOD of the tile, from i = begin. */
static inline bool result_part(const struct coll_case *c, int ranks, const unsigned char *data,
                               size_t begin, size_t n) {
    unsigned char tile[PERIOD * 8], turned[PERIOD * 8];
    size_t element = dtype_size(c->dtype);
    bool rounded = c->dtype == HVD_FLOAT32 || c->dtype == HVD_FLOAT64;
    fill_tile(c, ranks, -1, tile);
    for (size_t i = 0; i < PERIOD; i++)
        memcpy(turned + i * element, tile + (begin + i) % PERIOD * element, element);
    return rounded && c->how.op == HVD_AVERAGE
               ? nearly_filled(c->dtype, data, n, turned)
               : filled(data, n * element, turned, PERIOD * element);
}

static inline void check_reducescatter(struct coll_rank *self, const struct coll_case *c) {
    size_t element = dtype_size(c->dtype), row = c->n * element, in_end[MOST_RANKS];
    int ranks = self->ranks->size;
    for (int r = 0; r < ranks; r++)
        in_end[r] = row ? coll_chunk(c->rows * row, row, ranks, r).end : 0;
    struct coll_range own = coll_part(in_end, self->rank);
    unsigned char tile[PERIOD * 8];
    OWN(slab_free)
    struct slab in = slab_new(c->rows * row, element), out = slab_new(coll_length(own), element);
    fill_tile(c, ranks, self->rank, tile);
    fill(in.data, c->rows * row, tile, PERIOD * element);
    memset(out.data, 0x5a, coll_length(own));
    struct coll_args args = {
        .data = out.data, .bytes = c->rows * row, .in = in.data, .in_end = in_end};
    args.longest = longest_part(in_end, ranks);
    int code = case_run(self, c, &args, ERR);
    if (code != HVD_UNSUPPORTED) {
        bool good =
            rounds_by_hosts(self, c)
                ? within_bound(c, ranks, out.data, own.begin / element, coll_length(own) / element)
                : result_part(c, ranks, out.data, own.begin / element, coll_length(own) / element);
        check_result(self, c, good, code, ERR);
        CHECK(filled(in.data, c->rows * row, tile, PERIOD * element));
    }
}

/* The rows of each pair of ranks begin with the start of a tile of their own. */
static inline void fill_pair(const struct coll_case *c, int from, int to, unsigned char *tile) {
    fill_tile(c, 0, from * MOST_RANKS + to, tile);
}

/* The input has rows beyond the splits, which are not sent. */
static inline void check_alltoall(struct coll_rank *self, const struct coll_case *c) {
    size_t element = dtype_size(c->dtype), unit = c->n * element, more = unit;
    size_t in_end[MOST_RANKS], part_end[MOST_RANKS], in_bytes = 0, out_bytes = 0;
    int ranks = self->ranks->size, rank = self->rank;
    struct coll_args args = {.in_end = in_end, .part_end = part_end};
    for (int r = 0; r < ranks; r++) {
        in_end[r] = in_bytes += c->parts[rank * ranks + r] * unit;
        part_end[r] = out_bytes += c->parts[r * ranks + rank] * unit;
    }
    for (int i = 0; i < ranks * ranks; i++) {
        args.bytes += c->parts[i] * unit;
        if (c->parts[i] * unit > args.longest) args.longest = c->parts[i] * unit;
    }
    unsigned char tile[PERIOD * 8];
    OWN(slab_free)
    struct slab in = slab_new(in_bytes + more, element), out = slab_new(out_bytes, element);
    memset(in.data, 0x33, in_bytes + more);
    memset(out.data, 0x5a, out_bytes);
    for (int r = 0; r < ranks; r++) {
        struct coll_range part = coll_part(in_end, r);
        fill_pair(c, rank, r, tile);
        fill(in.data + part.begin, coll_length(part), tile, PERIOD * element);
    }
    args.in = in.data;
    args.data = out.data;
    int code = case_run(self, c, &args, ERR);
    for (int r = 0; r < ranks && code != HVD_UNSUPPORTED; r++) {
        struct coll_range part = coll_part(part_end, r);
        fill_pair(c, r, rank, tile);
        check_result(self, c,
                     filled(out.data + part.begin, coll_length(part), tile, PERIOD * element), code,
                     ERR);
    }
}

static inline void check_case(struct coll_rank *self, const struct coll_case *c) {
    switch (c->kind) {
    case HVD_REDUCESCATTER: check_reducescatter(self, c); break;
    case HVD_ALLTOALL: check_alltoall(self, c); break;
    case HVD_ALLREDUCE:
    case HVD_BROADCAST: check_in_place(self, c); break;
    default: check_allgather(self, c);
    }
}

/* Rows that take any size here. */
static inline bool by_kernels_of_any_size(const struct comm *comm, const struct coll_args *args) {
    return comm && !args->adasum;
}

static const struct coll_algorithm OF_ANY_SIZE[] = {
    {"recursive doubling", HVD_ALLREDUCE, false, by_kernels_of_any_size, coll_doubling},
    {"circulant", HVD_ALLREDUCE, false, by_kernels_of_any_size, coll_circulant},
};
enum { ANY_SIZES = sizeof OF_ANY_SIZE / sizeof *OF_ANY_SIZE };

/* Runs coll_run, every row of the table that takes the case, and those that prefer other sizes. */
static inline void check_rows(struct coll_rank *self, struct coll_case c) {
    size_t rows;
    const struct coll_algorithm *table = coll_table(&rows);
    c.row = NULL;
    check_case(self, &c);
    for (size_t i = 0; i < rows && self->ranks->size > 1; i++) {
        c.row = &table[i];
        if (c.row->kind != c.kind) continue;
        for (int whole = 0; whole <= c.row->in_tensors; whole++) {
            c.whole = whole;
            check_case(self, &c);
        }
        c.whole = false;
    }
    for (int i = 0; i < ANY_SIZES && c.kind == HVD_ALLREDUCE && self->ranks->size > 1; i++) {
        c.row = &OF_ANY_SIZE[i];
        check_case(self, &c);
    }
}

/* Runs `cases` on every rank; shared is an array of MOST_RANKS pointers. */
typedef void coll_cases(struct coll_rank *self);

struct coll_run_shared {
    coll_cases *cases;
    unsigned char *data[MOST_RANKS];
};

static inline void coll_rank_main(struct ranks *ranks, int rank, void *arg) {
    struct coll_run_shared *shared = arg;
    struct coll_rank self = {.ranks = ranks, .rank = rank, .data = shared->data};
    shared->cases(&self);
    scratch_free(&self.scratch);
    scratch_free(&self.outer);
}

static inline void coll_cases_run(int size, coll_cases *cases) {
    struct coll_run_shared shared = {.cases = cases};
    ranks_run(size, coll_rank_main, &shared);           /* by messages */
    ranks_run_on_window(size, coll_rank_main, &shared); /* and on a window */
}

/* By messages that are cut in this way. */
static inline void coll_cases_run_at(int size, struct pace pace, coll_cases *cases) {
    struct coll_run_shared shared = {.cases = cases};
    struct local_hub *hub = hub_of(size, 0, false);
    for (int i = 0; i < size; i++) local_hub_rank(hub, i)->pace = pace;
    ranks_run_hub(size, hub, coll_rank_main, &shared);
}

/* The same on hosts, each with a window: uneven; to and fro, so that a lane is not in the order of
 * its ranks; a rank alone; by turns; in blocks. `most`: how many of these placements. */
enum { PLACEMENTS = 7 };

static inline void coll_cases_run_on_hosts_at(struct pace pace, struct cost cost, coll_cases *cases,
                                              int most) {
    static const struct {
        int size, lowest[MOST_RANKS];
    } HOSTS[PLACEMENTS] = {{7, {0, 1, 2, 0, 1, 2, 0}},
                           {4, {0, 1, 1, 0}},
                           {4, {0, 1, 1, 1}},
                           {4, {0, 1, 0, 1}},
                           {4, {0, 0, 2, 2}},
                           {8, {0, 0, 0, 0, 4, 4, 4, 4}},
                           {9, {0, 0, 0, 3, 3, 3, 6, 6, 6}}};
    for (int i = 0; i < (CHECK_SLOW ? 2 : most); i++) {
        struct coll_run_shared shared = {.cases = cases};
        struct local_hub *hub = hub_on(HOSTS[i].size, HOSTS[i].lowest, true);
        for (int r = 0; r < HOSTS[i].size; r++) {
            local_hub_rank(hub, r)->pace = pace;
            local_hub_rank(hub, r)->cost = cost;
        }
        ranks_run_hub(HOSTS[i].size, hub, coll_rank_main, &shared);
    }
}

static inline void coll_cases_run_on_hosts(coll_cases *cases, int most) {
    coll_cases_run_on_hosts_at(PACE_DEFAULT, COST_ON_A_HOST, cases, most);
}

#endif
