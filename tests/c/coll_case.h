/* Tests one collective: fills this rank's memory, runs the collective, compares with the serial
 * result. */
#ifndef HVDLITE_COLL_CASE_H
#define HVDLITE_COLL_CASE_H

#include "coll_data.h"

#include "transport/comm.h"

/* Memory with only the alignment of an element. slab_free detects a write before the memory, the
 * address sanitizer a write after it. */
struct slab {
    unsigned char *whole, *data;
    size_t front;
};

static inline struct slab slab_new(size_t bytes, size_t element) {
    struct slab s = {malloc(bytes + element), NULL, element};
    REQUIRE(s.whole != NULL);
    memset(s.whole, 0xa5, element);
    s.data = s.whole + element;
    return s;
}

static inline void slab_free(struct slab *s) {
    for (size_t i = 0; i < s->front; i++) CHECK_INT(s->whole[i], 0xa5);
    free(s->whole);
}

/* State that a rank keeps between cases. */
struct coll_rank {
    struct ranks *ranks;
    int rank;
    struct scratch scratch, outer;
    unsigned char **data; /* by rank: that rank's result; shared by all ranks */
    char *mapped[MOST_RANKS];
};

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

/* Gives the collective the data of all ranks of the host as mapped memory. */
static inline void map_all(struct coll_rank *self, const struct comm *host,
                           struct coll_args *args) {
    self->data[self->rank] = args->data;
    ranks_meet(self->ranks);
    for (int i = 0; i < host->size; i++)
        self->mapped[i] = (char *)self->data[host->ranks ? host->ranks[i] : i];
    ranks_meet(self->ranks); /* wait, because the next case writes to `data` */
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

/* Returns whether all ranks have the same bits. */
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

/* Checks an allreduce or a broadcast. */
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
        if (!reduces) fill_tile(c, self->ranks->size, c->root, tile);
        bool good = !reduces ? filled(slab.data, bytes, tile, PERIOD * element)
                    : rounds_by_hosts(self, c)
                        ? within_bound(c, self->ranks->size, slab.data, 0, c->n)
                        : result_part(c, self->ranks->size, slab.data, 0, c->n);
        if (reduces) good &= same_on_all(self, slab.data, bytes);
        check_result(self, c, good, code, ERR);
    }
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

/* Runs an alltoall again, with lists of the parts. This rank's own part stays as it is. */
static inline int run_listed(struct coll_rank *self, const struct coll_case *c,
                             struct coll_args args, hvd_error *err) {
    const char *in[MOST_RANKS];
    char *out[MOST_RANKS], *data = args.data;
    for (int r = 0; r < self->ranks->size; r++) {
        in[r] = (const char *)args.in + coll_part(args.in_end, r).begin;
        out[r] = data + coll_part(args.part_end, r).begin;
        if (r != self->rank) memset(out[r], 0x5a, coll_length(coll_part(args.part_end, r)));
    }
    in[self->rank] = out[self->rank] = NULL;
    args.in = in;
    args.data = out;
    args.listed = true;
    return case_run(self, c, &args, err);
}

/* Checks an alltoall. The input has more rows than the splits; these rows must not be sent. */
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
    OWN(slab_free)
    struct slab in = slab_new(in_bytes + more, element), out = slab_new(out_bytes, element);
    memset(in.data, 0x33, in_bytes + more);
    memset(out.data, 0x5a, out_bytes);
    fill_pairs(c, ranks, rank, in.data);
    args.in = in.data;
    args.data = out.data;
    int code = case_run(self, c, &args, ERR);
    if (code == HVD_UNSUPPORTED) return;
    check_result(self, c, pairs_right(c, ranks, rank, out.data), code, ERR);
    code = run_listed(self, c, args, ERR);
    check_result(self, c, pairs_right(c, ranks, rank, out.data), code, ERR);
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

/* Returns whether this row of the table accepts data of any size on this comm. */
static inline bool by_kernels_of_any_size(const struct comm *comm, const struct coll_args *args) {
    return comm && !args->adasum;
}

static const struct coll_algorithm OF_ANY_SIZE[] = {
    {"recursive doubling", HVD_ALLREDUCE, false, by_kernels_of_any_size, coll_doubling},
    {"circulant", HVD_ALLREDUCE, false, by_kernels_of_any_size, coll_circulant},
};
enum { ANY_SIZES = sizeof OF_ANY_SIZE / sizeof *OF_ANY_SIZE };

/* Checks coll_run, and every row of the table that accepts the case. Also checks the rows of
 * OF_ANY_SIZE, because the table uses these algorithms for some sizes only. */
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

/* Runs `cases` on every rank. shared: an array of MOST_RANKS pointers. */
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
    ranks_run(size, coll_rank_main, &shared);           /* without a window: sends messages */
    ranks_run_on_window(size, coll_rank_main, &shared); /* with a window */
}

/* Runs the cases without a window, with messages of this pace. */
static inline void coll_cases_run_at(int size, struct pace pace, coll_cases *cases) {
    struct coll_run_shared shared = {.cases = cases};
    struct local_hub *hub = hub_of(size, 0, false);
    for (int i = 0; i < size; i++) local_hub_rank(hub, i)->pace = pace;
    ranks_run_hub(size, hub, coll_rank_main, &shared);
}

/* Runs the cases on several hosts with windows, in placements 1 to `most` of HOSTS: uneven; back
 * and forth, so that a lane's ranks are not in rising order; one rank alone on a host; in turn;
 * in blocks. */
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
