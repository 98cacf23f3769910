/* Every algorithm by messages, cut into segments of every length, few and many in flight. */
#include "coll_case.h"

static const struct pace PACES[] = {{64, 1}, {64, 2}, {128, 3}, {1024, 5}, {192, PACE_MOST_DEPTH}};
enum { NPACES = sizeof PACES / sizeof *PACES };

static void all_kinds(struct coll_rank *self, int dtype, size_t n) {
    size_t parts[MOST_RANKS * MOST_RANKS];
    for (int i = 0; i < MOST_RANKS * MOST_RANKS; i++) parts[i] = (size_t)i % 4;
    struct coll_case c = {
        .dtype = dtype, .n = n, .rows = 1, .how = {HVD_SUM, 1, 1}, .parts = parts};
    for (int kind = 0; kind < HVD_JOIN; kind++) {
        c.kind = (hvd_kind)kind;
        if (c.kind == HVD_REDUCESCATTER) c.rows = n, c.n = 1;
        check_rows(self, c);
        c.n = n;
    }
}

static void cases(struct coll_rank *self) {
    static const size_t SIZES[] = {1, 61, 1009};
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT16, HVD_INT8, HVD_FLOAT64};
    for (int d = 0; d < 4; d++)
        for (int s = 0; s < 3; s++) all_kinds(self, DTYPES[d], SIZES[s]);
}

TEST(test_every_pace) {
    for (int p = 2; p <= (CHECK_SLOW ? 4 : MOST_RANKS); p++)
        for (int i = 0; i < NPACES; i++) coll_cases_run_at(p, PACES[i], cases);
}

/* On links where a message costs nothing all goes by rings, several pieces of them. */
TEST(test_pieces_by_hosts) {
    static const struct cost BYTES_ALONE = {0, 1e-9};
    for (int i = 0; i < NPACES; i += 1 + CHECK_SLOW)
        coll_cases_run_on_hosts_at(PACES[i], BYTES_ALONE, cases, PLACEMENTS);
}
