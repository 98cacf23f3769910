/* Tests one collective: fills this rank's memory, runs the collective, compares with the serial
 * result. */
#ifndef HVDLITE_COLL_CASE_H
#define HVDLITE_COLL_CASE_H

#include "coll_data.h"

#include "transport/comm.h"

/* Memory with only the alignment of an element. slab_free detects a write in front of the memory;
 * the address sanitizer detects a write behind the memory. */
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

/* Runs an alltoall again, with lists of pointers to the parts. This rank's own part is not listed,
 * and so stays as it is. */
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

/* Returns the arguments that case_run does not set. `out` is also the input if the collective works
 * in place. */
static inline struct coll_args case_args(const struct coll_case *c, int ranks, struct case_parts *p,
                                         const void *in, void *out) {
    struct coll_args args = {.data = out, .bytes = p->in_bytes};
    if (has_parts(c->kind)) args.in = in;
    if (c->kind == HVD_REDUCESCATTER || c->kind == HVD_ALLTOALL) args.in_end = p->in_end;
    if (c->kind == HVD_ALLGATHER || c->kind == HVD_ALLTOALL) args.part_end = p->part_end;
    if (c->kind == HVD_ALLGATHER) args.bytes = p->out_bytes;
    if (c->kind != HVD_ALLTOALL) {
        args.longest = longest_part(args.in_end ? p->in_end : p->part_end, ranks);
        return args;
    }
    args.bytes = 0;
    for (int i = 0; i < ranks * ranks; i++) {
        size_t bytes = c->parts[i] * c->n * dtype_size(c->dtype);
        args.bytes += bytes;
        args.longest = bytes > args.longest ? bytes : args.longest;
    }
    return args;
}

/* Fills the memory, runs the collective, and checks the result and the input. The input of an
 * alltoall has more rows than its splits add up to; the additional rows must not be sent. */
static inline void check_case(struct coll_rank *self, const struct coll_case *c) {
    int ranks = self->ranks->size;
    struct case_parts p = parts_of(c, ranks, self->rank);
    size_t element = dtype_size(c->dtype);
    size_t in_bytes = p.in_bytes + (c->kind == HVD_ALLTOALL ? c->n * element : 0);
    OWN(slab_free)
    struct slab in = slab_new(in_bytes, element), out = slab_new(p.out_bytes, element);
    OWNED unsigned char *before = room(in_bytes);
    memset(before, 0x33, in_bytes);
    case_fill(c, ranks, self->rank, before);
    memcpy(in.data, before, in_bytes);
    memset(out.data, 0x5a, p.out_bytes);
    if (!has_parts(c->kind)) memcpy(out.data, before, p.out_bytes);
    struct coll_args args = case_args(c, ranks, &p, in.data, out.data);
    for (int listed = 0; listed <= (c->kind == HVD_ALLTOALL); listed++) {
        int code = listed ? run_listed(self, c, args, ERR) : case_run(self, c, &args, ERR);
        if (code == HVD_UNSUPPORTED) return;
        bool good = case_right(c, ranks, self->rank, rounds_by_hosts(self, c), out.data);
        if (c->kind == HVD_ALLREDUCE) good &= same_on_all(self, out.data, p.out_bytes);
        check_result(self, c, good, code, ERR);
    }
    CHECK(!memcmp(in.data, before, in_bytes));
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

/* Checks coll_run, and every row of the table of algorithms that accepts the case. Also checks the
 * rows of OF_ANY_SIZE, because the table uses these algorithms for some sizes only. */
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

/* Runs the cases of a test on one rank. */
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
    struct local_hub *hub = hub_at(hub_of(size, 0, false), pace, COST_ON_A_HOST);
    ranks_run_hub(size, hub, coll_rank_main, &shared);
}

/* Runs the cases on several hosts whose ranks share memory, with the first `most` rows of HOSTS. A
 * row has the number of ranks, and for each rank the lowest rank of its host. */
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
        ranks_run_hub(HOSTS[i].size, hub_at(hub, pace, cost), coll_rank_main, &shared);
    }
}

static inline void coll_cases_run_on_hosts(coll_cases *cases, int most) {
    coll_cases_run_on_hosts_at(PACE_DEFAULT, COST_ON_A_HOST, cases, most);
}

#endif
