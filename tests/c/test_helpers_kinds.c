/* Helpers share the copies and sums of every kind of collective: on one host, on several hosts, by
 * messages, and of fused tensors. Any number of threads gives the same bits. */
#include "coll_case.h"
#include "engine_case.h"

#include "random.h"
#include "shm/helpers.h"

/* The helpers work from LEAST bytes on; LEAST is a multiple of 2, 3 and 4 floats. */
enum { LEAST = 6144, VALUES = 300007, ROOM = VALUES + MOST_RANKS, MOST_THREADS = 4 };

static float in[MOST_RANKS][ROOM], results[MOST_RANKS][ROOM], first[MOST_RANKS][ROOM];

/* Runs a row of the table, from in[rank] to results[rank]. Returns false if the row does not accept
 * this collective. */
static bool run_row(struct coll_rank *self, const struct coll_algorithm *row, size_t n) {
    size_t p = (size_t)self->ranks->size, parts[MOST_RANKS * MOST_RANKS];
    for (size_t i = 0; i < p * p; i++) parts[i] = n / p + (i % p < n % p);
    struct coll_case c = {.row = p > 1 ? row : NULL, .kind = row->kind, .dtype = HVD_FLOAT32};
    c.n = has_parts(c.kind) ? 1 : n;
    c.rows = n;
    c.parts = parts;
    c.how = (struct scaling){HVD_AVERAGE, 0.5, 1};
    c.root = (int)p - 1;
    struct case_parts ends = parts_of(&c, (int)p, self->rank);
    float *own = results[self->rank];
    memcpy(own, in[self->rank], n * sizeof *own);
    struct coll_args args = case_args(&c, (int)p, &ends, in[self->rank], own);
    int code = case_run(self, &c, &args, ERR);
    return code != HVD_UNSUPPORTED && OK(code);
}

/* Algorithms for small data, and Adasum, share no work. */
static bool shares(const struct coll_algorithm *row) {
    return row->run != coll_tree && row->run != coll_chain && row->run != coll_doubling &&
           row->run != coll_circulant && row->run != coll_adasum;
}

/* In a window, and if a rank is alone, helpers take part if the bytes reach LEAST; otherwise if
 * segments, slices or parts are as large. The broadcast of a lone rank copies nothing. */
static void check_calls(const struct comm *comm, const struct coll_algorithm *row, size_t n,
                        unsigned calls) {
    bool direct = row->run == coll_direct_allreduce, alone = comm->size == 1;
    bool exact = alone || direct || (comm->window && strstr(row->name, "window"));
    bool large = exact ? n * sizeof(float) >= LEAST : n == VALUES;
    large &= !alone || row->kind != HVD_BROADCAST;
    if (exact || n <= 1 || n == VALUES)
        CHECK_CASE((calls > 0) == large, "%s of %zu values: %u calls", row->name, n, calls);
}

static void compare(struct coll_rank *self) {
    static const size_t SIZES[] = {0, 1, LEAST / 4 - 1, LEAST / 4, LEAST / 4 + 1, VALUES};
    const int rank = self->rank;
    struct transport *t = rank_transport(self->ranks, rank);
    size_t rows, sizes = sizeof SIZES / sizeof *SIZES;
    const struct coll_algorithm *table = coll_table(&rows);
    uint64_t random = (uint64_t)rank;
    for (size_t i = 0; i < VALUES; i++) in[rank][i] = (float)random_unit(&random);
    for (size_t i = 0; i < rows * sizes; i++) {
        const struct coll_algorithm *row = &table[i / sizes];
        size_t n = SIZES[i % sizes], bytes = (n + MOST_RANKS) * sizeof(float);
        for (int threads = 1; threads <= MOST_THREADS && shares(row); threads += 1 + CHECK_SLOW) {
            t->helpers = helpers_new(threads, i % 2 ? 30e-6 : 0, LEAST);
            bool taken = run_row(self, row, n);
            if (threads == 1) memcpy(first[rank], results[rank], bytes);
            if (taken && threads > 1) check_calls(&t->all, row, n, helpers_calls(t->helpers));
            CHECK_CASE(!memcmp(first[rank], results[rank], bytes), "%s of %zu values, %d threads",
                       row->name, n, threads);
            helpers_free(t->helpers);
        }
    }
    t->helpers = NULL;
}

static struct coll_run_shared compared = {.cases = compare};

TEST(test_all_kinds_on_one_host_have_the_same_bits_with_any_number_of_threads) {
    for (int size = 1; size <= 4; size = more_ranks(size))
        ranks_run_on_window(size, coll_rank_main, &compared);
}

TEST(test_results_over_messages_have_the_same_bits_with_any_number_of_threads) {
    ranks_run(3, coll_rank_main, &compared);
}

TEST(test_results_of_several_hosts_have_the_same_bits_with_any_number_of_threads) {
    static const int LOWEST[][4] = {{0, 1, 1, 0}, {0, 0, 2, 2}};
    const struct pace pace = {2 * LEAST, 3};
    for (int i = 0; i < 2; i++)
        ranks_run_hub(4, hub_at(hub_on(4, LOWEST[i], true), pace, BYTES_ALONE), coll_rank_main,
                      &compared);
}

/* ---- fused tensors ---- */

/* The tree that moves the packed broadcasts has no work for helpers; packing and unpacking have. */
ENGINES(broadcast_group, arg) {
    enum { TENSORS = 3 };
    struct work works[TENSORS];
    for (int i = 0; i < TENSORS; i++) {
        struct coll_case c = {.kind = HVD_BROADCAST, .dtype = HVD_FLOAT32, .n = 1000 + (size_t)i};
        char name[] = {'x', '[', (char)('0' + i), ']', 0};
        work_init(&works[i], me, c, name, false);
        works[i].tensor.request.grouped = TENSORS;
    }
    works_submit(works, TENSORS, NULL);
    works_check(me, works, TENSORS);
    CHECK_INT(helpers_calls(rank_transport(me->ranks, me->rank)->helpers), 2);
    works_free(works, TENSORS);
}

static void share_packing(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank);
    t->helpers = helpers_new(3, 0, LEAST);
    broadcast_group(ranks, rank, arg);
    helpers_free(t->helpers);
}

TEST(test_helpers_pack_and_unpack_fused_tensors) { ranks_run(3, share_packing, NULL); }
