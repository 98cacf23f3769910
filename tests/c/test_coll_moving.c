/* Broadcast and allgather: every algorithm, 1 to 9 ranks, every root, uneven and empty parts. */
#include "coll_case.h"

/* Nothing is computed: of a dtype only the size of an element matters. */
static const int DTYPES[] = {HVD_FLOAT64, HVD_FLOAT32, HVD_BFLOAT16, HVD_UINT8};

static void broadcast_every_root(struct coll_rank *self, int dtype, size_t n) {
    for (int root = 0; root < self->ranks->size; root++)
        check_rows(self,
                   (struct coll_case){.kind = HVD_BROADCAST, .dtype = dtype, .n = n, .root = root});
}

static void broadcast_cases(struct coll_rank *self) {
    size_t p = (size_t)self->ranks->size;
    const size_t sizes[] = {0, 1, p - 1, p, p + 1, 61, 1009, 16411};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        broadcast_every_root(self, DTYPES[s % 4], sizes[s]);
    for (int d = 0; d < 4; d++) broadcast_every_root(self, DTYPES[d], 31);
}

TEST(test_broadcast) {
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, broadcast_cases);
}

/* About k segments of data. */
static void long_broadcasts(struct coll_rank *self) {
    size_t segment = PACE_DEFAULT.segment / sizeof(float);
    for (size_t k = 1; k <= 6; k += CHECK_SLOW ? 4 : 1)
        for (size_t more = 0; more < 3; more++)
            check_rows(self, (struct coll_case){.kind = HVD_BROADCAST,
                                                .dtype = HVD_FLOAT32,
                                                .n = k * segment + more - 1,
                                                .root = (int)(k + more) % self->ranks->size});
    check_rows(self, (struct coll_case){.kind = HVD_BROADCAST, .dtype = HVD_UINT8, .n = 1000003});
}

TEST(test_long_broadcast) {
    coll_cases_run(1, long_broadcasts);
    coll_cases_run(2, long_broadcasts);
    coll_cases_run(CHECK_SLOW ? 3 : 7, long_broadcasts);
}

/* Units that each rank brings: equal, none at all, one only, more and more, some empty. */
static void parts_of(int shape, int ranks, size_t *parts) {
    for (int r = 0; r < ranks; r++) {
        const size_t of_rank[] = {
            1, 0, r == ranks - 1, (size_t)r, (size_t)(r % 3 == 1 ? 0 : 5 - r % 4), r == 0 ? 40 : 1};
        parts[r] = of_rank[shape];
    }
}
enum { SHAPES = 6 };

static void gather(struct coll_rank *self, int dtype, size_t n) {
    for (int shape = 0; shape < SHAPES; shape++) {
        size_t parts[MOST_RANKS];
        parts_of(shape, self->ranks->size, parts);
        check_rows(self, (struct coll_case){
                             .kind = HVD_ALLGATHER, .dtype = dtype, .n = n, .parts = parts});
    }
}

static void allgather_cases(struct coll_rank *self) {
    static const size_t SIZES[] = {1, 2, 61, 1009};
    for (int d = 0; d < 4; d++)
        for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) gather(self, DTYPES[d], SIZES[s]);
}

TEST(test_allgather) {
    for (int p = 1; p <= MOST_RANKS; p = more_ranks(p)) coll_cases_run(p, allgather_cases);
}

/* Parts that differ in their number of segments. */
static void long_allgathers(struct coll_rank *self) {
    static const size_t PARTS[][5] = {
        {1, 1, 1, 1, 1}, {5, 0, 1, 2, 0}, {0, 0, 7, 0, 0}, {1, 6, 4, 5, 1}};
    size_t segment = PACE_DEFAULT.segment / sizeof(double);
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        for (size_t more = CHECK_SLOW; more < 3; more++)
            check_rows(self, (struct coll_case){.kind = HVD_ALLGATHER,
                                                .dtype = HVD_FLOAT64,
                                                .n = segment + more - 1,
                                                .parts = PARTS[i]});
}

TEST(test_long_allgather) {
    coll_cases_run(2, long_allgathers);
    if (!CHECK_SLOW) coll_cases_run(3, long_allgathers);
    coll_cases_run(CHECK_SLOW ? 3 : 5, long_allgathers);
}

TEST(test_on_hosts) {
    coll_cases_run_on_hosts(broadcast_cases, PLACEMENTS);
    coll_cases_run_on_hosts(allgather_cases, PLACEMENTS);
    if (!CHECK_SLOW) coll_cases_run_on_hosts(long_broadcasts, 2);
}
