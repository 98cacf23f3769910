/* Chunks, the choice of an algorithm, and broken links: the call of the rank whose link breaks
 * fails, the other ranks' calls return, and nothing hangs or leaks. */
#include "coll_case.h"

#include "collectives/algorithm.h"
#include "transport/transports.h"

static void check_chunks(size_t bytes, size_t element, int n) {
    size_t at = 0, least = SIZE_MAX, most = 0;
    for (int i = 0; i < n; i++) {
        struct coll_range r = coll_chunk(bytes, element, n, i);
        CHECK_INT(r.begin, at);
        CHECK(r.end >= r.begin);
        size_t length = coll_length(r);
        CHECK_INT(length % element, 0);
        least = length < least ? length : least;
        most = length > most ? length : most;
        at = r.end;
    }
    CHECK_INT(at, bytes);
    CHECK(most - least <= element);
}

TEST(test_chunks_differ_by_at_most_one_element) {
    static const size_t ELEMENTS[] = {1, 2, 4, 8};
    static const size_t COUNTS[] = {0, 1, 2, 7, 8, 9, 10, 61, 1009, 65536, 1000003};
    for (int n = 1; n <= 9; n++)
        for (size_t e = 0; e < 4; e++)
            for (size_t c = 0; c < sizeof COUNTS / sizeof *COUNTS; c++)
                check_chunks(COUNTS[c] * ELEMENTS[e], ELEMENTS[e], n);
    check_chunks((size_t)1 << 40, 4, 7);
}

static struct transport links = {.pace = {60 * 1024, 16}};
/* without a window */
static const struct comm MESSAGES = {.transport = &links, .size = 4, .hosts = 1};

static const struct coll_algorithm *first_that_takes(const struct coll_args *args) {
    size_t rows;
    const struct coll_algorithm *table = coll_table(&rows);
    for (size_t i = 0; i < rows; i++)
        if (coll_takes(&table[i], &MESSAGES, args)) return &table[i];
    return NULL;
}

TEST(test_each_kind_dtype_and_size_of_a_collective_has_an_algorithm) {
    static const size_t BYTES[] = {0,       8,       1 << 10,        1 << 14, (1 << 14) + 8,
                                   1 << 16, 1 << 20, (size_t)1 << 40};
    for (int kind = 0; kind < HVD_KINDS; kind++) {
        if (kind == HVD_JOIN) continue; /* a join moves no data */
        for (int dtype = 0; dtype < HVD_DTYPES; dtype++) {
            for (size_t b = 0; b < sizeof BYTES / sizeof *BYTES; b++) {
                struct coll_args args = {.kind = (hvd_kind)kind, .bytes = BYTES[b]};
                if (kind == HVD_ALLREDUCE || kind == HVD_REDUCESCATTER)
                    args.reduce = reduce_kernels((hvd_dtype)dtype, HVD_SUM);
                const struct coll_algorithm *row = first_that_takes(&args);
                if (!CHECK(row != NULL)) continue;
                CHECK(coll_choose(&MESSAGES, &args) == row);
                CHECK(row->kind == args.kind);
                if (row->run == coll_ring_allreduce)
                    CHECK_INT(args.reduce->size, args.reduce->wide);
            }
        }
    }
}

/* Benchmarks and error texts identify algorithms by name. */
TEST(test_no_two_algorithms_of_a_kind_share_a_name) {
    size_t rows;
    const struct coll_algorithm *table = coll_table(&rows);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < i; j++) CHECK(strcmp(table[i].name, table[j].name) != 0);
}

/* ---- a link that breaks ---- */

struct fault {
    const struct coll_algorithm *row;
    int dtype;
    size_t n;
    int broken;         /* the rank whose link breaks */
    int after;          /* number of waits before the link breaks; 0: it breaks before the call */
    atomic_bool spread; /* true: the call on rank `broken` has returned */
    int codes[MOST_RANKS];
    unsigned char *data[MOST_RANKS];
    char texts[MOST_RANKS][1024];
};

struct watcher {
    struct ranks *ranks;
    struct fault *fault;
    int rank, waits;
};

/* Runs during waits, in place of the engine. Breaks the link of rank `broken` after some waits;
 * ends the other ranks' waits when the call on rank `broken` has returned. */
static int watch(void *arg, hvd_error *err) {
    struct watcher *w = arg;
    if (w->rank == w->fault->broken && ++w->waits == w->fault->after)
        local_hub_break(w->ranks->hub, w->rank);
    return atomic_load(&w->fault->spread) ? error_set(err, HVD_STALLED, "told to stop") : HVD_OK;
}

static void fault_main(struct ranks *ranks, int rank, void *arg) {
    static const size_t ONES[MOST_RANKS * MOST_RANKS] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                                         1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct fault *f = arg;
    int op = f->row->run == coll_adasum ? HVD_ADASUM : HVD_SUM;
    struct coll_case c = {.row = f->row, .kind = f->row->kind, .dtype = f->dtype, .parts = ONES};
    c.n = f->n;
    c.rows = (size_t)ranks->size;
    c.how = (struct scaling){op, 1, 1};
    struct coll_rank self = {.ranks = ranks, .rank = rank, .data = f->data};
    struct case_parts p = parts_of(&c, ranks->size, rank);
    OWNED void *in = room(p.in_bytes), *out = room(p.out_bytes);
    struct coll_args args = case_args(&c, ranks->size, &p, in, out);
    struct watcher watcher = {ranks, f, rank, 0};
    struct transport *t = rank_transport(ranks, rank);
    t->patience.meanwhile = watch;
    t->patience.arg = &watcher;
    if (rank == f->broken && !f->after) local_hub_break(ranks->hub, rank);
    f->codes[rank] = case_run(&self, &c, &args, ERR);
    memcpy(f->texts[rank], ERR->text, sizeof ERR->text);
    if (rank == f->broken) atomic_store(&f->spread, true);
    scratch_free(&self.scratch);
    scratch_free(&self.outer);
}

/* The call of the rank whose link breaks fails, unless the call ended before. The calls of other
 * ranks succeed, or end because they are told to stop. */
static void check_fault(struct fault *f, int ranks) {
    int got = f->codes[f->broken];
    if (got == HVD_UNSUPPORTED) return;
    CHECK_CASE(got == HVD_TRANSPORT || (f->after && got == HVD_OK), "%s, %d ranks, code %d (%s)",
               f->row->name, ranks, got, f->texts[f->broken]);
    if (got) CHECK_HAS(f->texts[f->broken], "link is broken");
    for (int r = 0; r < ranks; r++) {
        if (r == f->broken || f->codes[r] == HVD_OK) continue;
        CHECK_INT(f->codes[r], HVD_STALLED);
        CHECK_HAS(f->texts[r], "told to stop");
    }
}

static void run_fault(const struct coll_algorithm *row, int ranks, int broken, int after,
                      size_t n) {
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT16};
    for (int d = 0; d < 2; d++) {
        struct fault f = {.row = row, .dtype = DTYPES[d], .n = n, .broken = broken, .after = after};
        ranks_run_to_break(ranks, fault_main, &f);
        check_fault(&f, ranks);
    }
}

static void run_rows(const struct coll_algorithm *table, size_t rows, int after, size_t n) {
    for (size_t i = 0; i < rows; i++)
        for (int ranks = 2; ranks <= 5; ranks = more_ranks(ranks))
            for (int broken = 0; broken < ranks; broken++)
                run_fault(&table[i], ranks, broken, after, n);
}

static void run_everywhere(int after, size_t n) {
    size_t rows;
    const struct coll_algorithm *table = coll_table(&rows);
    run_rows(table, rows, after, n);
    run_rows(OF_ANY_SIZE, ANY_SIZES, after, n);
}

TEST(test_a_collective_on_a_broken_link_fails) {
    run_everywhere(0, 1);
    run_everywhere(0, 1009);
}

TEST(test_a_link_that_breaks_during_a_collective_ends_the_collective_on_every_rank) {
    run_everywhere(1, 1009);
    run_everywhere(3, 70001);
    if (!CHECK_SLOW) run_everywhere(7, 300007);
}
