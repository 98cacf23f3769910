/* Helper threads share the copies and sums of every kind of collective, in shared memory and with
 * messages, also of encoded and fused tensors. Any number of threads gives the same bits. */
#include "coll_case.h"
#include "engine_case.h"

#include "base/floats.h"

#include "codec_case.h"
#include "collectives/coded.h"
#include "random.h"
#include "shm/helpers.h"

/* The helpers work from LEAST bytes on; LEAST is a multiple of 2, 3 and 4 floats. `in` has numbers
 * of one dtype: float32, or bfloat16, whose accumulator is wider. */
enum { LEAST = 6144, VALUES = 300007, ROOM = VALUES + MOST_RANKS, MOST_THREADS = 4 };

static float in[MOST_RANKS][ROOM], results[MOST_RANKS][ROOM], first[MOST_RANKS][ROOM];

/* Runs a row of the table of algorithms, from in[rank] to results[rank]. Returns false if the row
 * does not accept this collective. */
static bool run_row(struct coll_rank *self, const struct coll_algorithm *row, int dtype, size_t n) {
    size_t p = (size_t)self->ranks->size, parts[MOST_RANKS * MOST_RANKS];
    for (size_t i = 0; i < p * p; i++) parts[i] = n / p + (i % p < n % p);
    struct coll_case c = {.row = p > 1 ? row : NULL, .kind = row->kind, .dtype = dtype};
    c.n = has_parts(c.kind) ? 1 : n;
    c.rows = n;
    c.parts = parts;
    c.how = (struct scaling){row->run == coll_adasum ? HVD_ADASUM : HVD_AVERAGE, 0.5, 1};
    c.root = (int)p - 1;
    struct case_parts ends = parts_of(&c, (int)p, self->rank);
    float *own = results[self->rank];
    memcpy(own, in[self->rank], n * dtype_size(dtype));
    struct coll_args args = case_args(&c, (int)p, &ends, in[self->rank], own);
    int code = case_run(self, &c, &args, ERR);
    return code != HVD_UNSUPPORTED && OK(code);
}

/* Returns whether helpers can share the algorithm's work: broadcasts by messages have no work. */
static bool shares(const struct coll_algorithm *row) {
    return row->run != coll_tree && row->run != coll_chain;
}

/* Helpers must take part if a tensor on one host, or a segment of a message, has at least LEAST
 * bytes. The broadcast of a job with one rank copies nothing, so it needs no helpers. */
static void check_calls(const struct comm *comm, const struct coll_algorithm *row, size_t bytes,
                        unsigned calls) {
    bool direct = row->run == coll_direct_allreduce, alone = comm->size == 1;
    bool exact = alone || direct || (comm->window && strstr(row->name, "window"));
    bool large = exact ? bytes >= LEAST : bytes >= 2 * VALUES;
    large &= !alone || row->kind != HVD_BROADCAST;
    if (exact || bytes <= sizeof(float) || bytes >= 2 * VALUES)
        CHECK_CASE((calls > 0) == large, "%s of %zu bytes: %u calls", row->name, bytes, calls);
}

static void compare_row(struct coll_rank *self, const struct coll_algorithm *row, int dtype,
                        size_t n) {
    const int rank = self->rank;
    struct transport *t = rank_transport(self->ranks, rank);
    size_t bytes = n * dtype_size(dtype), compared = bytes + MOST_RANKS * dtype_size(dtype);
    for (int threads = 1; threads <= MOST_THREADS && shares(row); threads += 1 + CHECK_SLOW) {
        t->helpers = helpers_new(threads, n % 2 ? 30e-6 : 0, LEAST);
        bool taken = run_row(self, row, dtype, n);
        if (threads == 1) memcpy(first[rank], results[rank], compared);
        if (taken && threads > 1) check_calls(&t->all, row, bytes, helpers_calls(t->helpers));
        CHECK_CASE(!memcmp(first[rank], results[rank], compared), "%s of %zu bytes, %d threads",
                   row->name, bytes, threads);
        helpers_free(t->helpers);
    }
    t->helpers = NULL;
}

static void compare(struct coll_rank *self) {
    static const int DTYPES[] = {HVD_FLOAT32, HVD_BFLOAT16};
    size_t rows;
    const struct coll_algorithm *table = coll_table(&rows);
    for (int d = 0; d < 2; d++) {
        uint64_t random = (uint64_t)self->rank;
        for (size_t i = 0; i < VALUES; i++)
            element_put(DTYPES[d], in[self->rank], i, random_unit(&random));
        size_t least = LEAST / dtype_size(DTYPES[d]);
        const size_t sizes[] = {0, 1, least - 1, least, least + 1, VALUES};
        for (size_t i = 0; i < (rows + ANY_SIZES) * 6; i++) {
            size_t row = i / 6;
            compare_row(self, row < rows ? &table[row] : &OF_ANY_SIZE[row - rows], DTYPES[d],
                        sizes[i % 6]);
        }
    }
}

static struct coll_run_shared compared = {.cases = compare};

TEST(test_results_on_one_host_have_the_same_bits_with_any_number_of_threads) {
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

/* ---- encoded tensors ---- */

typedef int coded_way(const struct comm *comm, const struct coded_args *args, hvd_error *err);

/* Encodes in the mode of TensorFlow's threads, which flush subnormal numbers to 0. */
static void encode(const struct comm *comm, const struct codec_input *input, size_t n) {
    floats_mode mode = floats_exact();
#if defined __x86_64__ || defined __i386__
    _mm_setcsr(_mm_getcsr() | 0x8040);
#endif
    OK(coded_encode(comm, input, n, ERR));
    floats_restore(mode);
}

/* Encodes two tensors, then sums them, into results[rank]. Returns the residuals, then the
 * messages. */
static char *run_coded(const struct comm *comm, struct codec c, coded_way *way, size_t n,
                       size_t *bytes) {
    size_t front = n / 3, of_front = codec_bytes(c, front), of_back = codec_bytes(c, n - front);
    *bytes = n * sizeof(float) + of_front + of_back;
    char *encoded = room(*bytes), *copy = room(of_front + of_back);
    float *residual = (float *)(void *)encoded, *out = results[comm->rank];
    char *messages = encoded + n * sizeof(float);
    struct codec_input input = {c, in[comm->rank], 0.5, residual, messages};
    encode(comm, &input, front);
    input.values += front;
    input.residual += front;
    input.message = messages + of_front;
    encode(comm, &input, n - front);
    memcpy(copy, messages, of_front + of_back);
    struct coded_tensor tensors[] = {{copy, out, front}, {copy + of_front, out + front, n - front}};
    OWN(scratch_free) struct scratch buffer = {0}, scratch = {0}, outer = {0};
    struct coded_args args = {.codec = c,
                              .contributors = comm->size,
                              .final = {1, comm->size},
                              .tensors = tensors,
                              .ntensors = 2,
                              .buffer = &buffer,
                              .scratch = &scratch,
                              .outer = &outer};
    OK(way(comm, &args, ERR));
    free(copy);
    return encoded;
}

static void compare_coded(struct transport *t, struct codec c, coded_way *way, size_t n) {
    int rank = t->at.rank;
    char *right = NULL;
    for (int threads = 1; threads <= MOST_THREADS; threads += 1 + CHECK_SLOW) {
        size_t bytes;
        t->helpers = helpers_new(threads, 30e-6, LEAST);
        char *encoded = run_coded(&t->all, c, way, n, &bytes);
        if (threads == 1) memcpy(first[rank], results[rank], n * sizeof(float));
        if (!right) right = memcpy(malloc(bytes), encoded, bytes);
        CHECK_CASE(!memcmp(first[rank], results[rank], n * sizeof(float)) &&
                       !memcmp(right, encoded, bytes),
                   "%s of %zu values, %d threads", codec_name(c.kind), n, threads);
        CHECK((helpers_calls(t->helpers) > 0) == (n == VALUES && threads > 1));
        helpers_free(t->helpers);
        free(encoded);
    }
    free(right);
    t->helpers = NULL;
}

/* In every sixth run the last value of rank 0 is infinite. */
static void compare_all_coded(struct ranks *ranks, int rank, void *arg) {
    static const size_t SIZES[] = {3, LEAST / 8 - 1, VALUES};
    struct transport *t = rank_transport(ranks, rank);
    uint64_t random = (uint64_t)rank;
    for (size_t i = 0; i < VALUES; i++) in[rank][i] = (float)(2 * random_unit(&random) - 1);
    for (size_t i = 0; i < VALUES; i += 97) in[rank][i] = 1e-41F; /* subnormal */
    for (int i = 0; i < 2 * 3 * CODED_CASES_N; i++) {
        struct codec c = CODED_CASES[i / 6];
        if (i % 6 == 5) in[rank][VALUES - 1] = rank ? 1 : INFINITY;
        compare_coded(t, c, coll_coded, SIZES[i % 3]);
        if (!codec_is_cast(c) && codec_kernels(c, t->at.size))
            compare_coded(t, c, coll_coded_scattered, SIZES[i % 3]);
        in[rank][VALUES - 1] = 0;
    }
}

TEST(test_encoded_tensors_have_the_same_bits_with_any_number_of_threads) {
    ranks_run(3, compare_all_coded, NULL);
    ranks_run_on_window(2, compare_all_coded, NULL);
}

/* ---- fused tensors ---- */

/* Helpers share the packing and unpacking of fused broadcasts, not the packed data's broadcast. */
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
