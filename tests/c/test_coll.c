/* Chunks, and the choice of an algorithm. */
#include "check.h"

#include "collectives/coll.h"
#include "transport/transport.h"

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
static const struct comm MESSAGES = {.transport = &links, .size = 4, .hosts = 1}; /* no window */

static const struct coll_algorithm *first_that_takes(const struct coll_args *args) {
    size_t rows;
    const struct coll_algorithm *table = coll_table(&rows);
    for (size_t i = 0; i < rows; i++)
        if (coll_takes(&table[i], &MESSAGES, args)) return &table[i];
    return NULL;
}

TEST(test_every_collective_is_taken) {
    static const size_t BYTES[] = {0,       8,       1 << 10,        1 << 14, (1 << 14) + 8,
                                   1 << 16, 1 << 20, (size_t)1 << 40};
    for (int kind = 0; kind < HVD_KINDS; kind++) {
        if (kind == HVD_JOIN) continue; /* moves no data */
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

/* No two of a kind share a name: benchmarks and error texts tell them by it. */
TEST(test_no_two_algorithms_of_a_kind_share_a_name) {
    size_t rows;
    const struct coll_algorithm *table = coll_table(&rows);
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < i; j++) CHECK(strcmp(table[i].name, table[j].name) != 0);
}
