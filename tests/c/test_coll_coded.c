/* The allreduce of encoded tensors, with messages and in a window: the same bits as a sum computed
 * here, and no more bytes sent than expected. */
#include "check.h"

#include "codec_case.h"
#include "collectives/coded.h"
#include "ranks.h"

enum { MOST_TENSORS = 5 };

struct coded_case {
    struct codec codec;
    hvd_op op;
    double scale;
    int bad; /* the rank whose first tensor has a NaN; -1: none */
    size_t sizes[MOST_TENSORS], ntensors;
};

typedef int coded_way(const struct comm *comm, const struct coded_args *args, hvd_error *err);

struct coded_rank {
    struct transport *t;
    coded_way *way;
    struct scratch buffer, scratch, outer;
};

static void free_memory(struct coded_rank *self) {
    scratch_free(&self->buffer);
    scratch_free(&self->scratch);
    scratch_free(&self->outer);
}

static void make_tensors(const struct coded_case *c, int rank, struct coded_tensor *tensors) {
    for (size_t i = 0; i < c->ntensors; i++) {
        size_t n = c->sizes[i];
        tensors[i] =
            (struct coded_tensor){room(codec_bytes(c->codec, n)), room(n * sizeof(float)), n};
        coded_message(c->codec, rank, n, i == 0 && c->bad == rank, tensors[i].message);
    }
}

/* Returns whether the error is within its bound. Values are at most 2; float16 and bfloat16 are
 * also rounded on each host. */
static bool nearly_same(const struct transport *t, struct codec codec, const float *got,
                        const float *expected, size_t n, double factor) {
    double unit = codec.kind == HVD_CODEC_FLOAT16 ? 0x1p-11 : 0x1p-8;
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)got[i] - (double)expected[i]) <= 3.1 * unit * 2 * t->at.size * factor))
            return false;
    return true;
}

static void check_tensors(const struct coded_case *c, const struct transport *t,
                          const struct coded_tensor *tensors) {
    double factor = c->scale / (c->op == HVD_AVERAGE ? t->at.size : 1);
    for (size_t i = 0; i < c->ntensors; i++) {
        OWNED float *expected =
            coded_sum(c->codec, t->at.size, i ? -1 : c->bad, tensors[i].n, factor);
        bool levels = t->layout.windows && t->all.hosts > 1 && codec_is_cast(c->codec);
        CHECK_CASE(levels ? nearly_same(t, c->codec, tensors[i].out, expected, tensors[i].n, factor)
                          : coded_same(tensors[i].out, expected, tensors[i].n),
                   "%s, %d ranks on %d hosts, rank %d, tensor %zu of %zu with %zu values",
                   codec_name(c->codec.kind), t->at.size, t->all.hosts, t->at.rank, i, c->ntensors,
                   tensors[i].n);
    }
}

static void run_case(struct coded_rank *self, const struct coded_case *c) {
    struct coded_tensor tensors[MOST_TENSORS];
    make_tensors(c, self->t->at.rank, tensors);
    struct coded_args args = {.codec = c->codec,
                              .contributors = self->t->at.size,
                              .final = {c->scale, c->op == HVD_AVERAGE ? self->t->at.size : 1},
                              .tensors = tensors,
                              .ntensors = c->ntensors,
                              .buffer = &self->buffer,
                              .scratch = &self->scratch,
                              .outer = &self->outer};
    OK(self->way(&self->t->all, &args, ERR));
    /* only some ranks check: computing all ranks' messages takes long */
    if (self->t->at.rank % 4 == 0) check_tensors(c, self->t, tensors);
    for (size_t i = 0; i < c->ntensors; i++) {
        free(tensors[i].message);
        free(tensors[i].out);
    }
}

/* Batches of one and of several tensors. A tensor has no values, about as many as one coded word
 * holds, or so many that it is sent in several segments. */
static const struct coded_case SHAPES[] = {
    {.sizes = {0}, .ntensors = 1},       {.sizes = {1}, .ntensors = 1},
    {.sizes = {1000}, .ntensors = 1},    {.sizes = {31, 0, 1, 33, 17}, .ntensors = 5},
    {.sizes = {5001, 5}, .ntensors = 2},
};

static bool allowed(coded_way *way, struct codec c, int p) {
    return way != coll_coded_scattered || (p > 1 && !codec_is_cast(c) && codec_kernels(c, p));
}

static void all_cases(struct ranks *ranks, int rank, void *way) {
    struct coded_rank self = {.t = rank_transport(ranks, rank), .way = *(coded_way **)way};
    for (int k = 0; k < CODED_CASES_N; k++) {
        for (size_t s = 0; s < sizeof SHAPES / sizeof *SHAPES; s++) {
            struct coded_case c = SHAPES[s];
            if (!allowed(self.way, CODED_CASES[k], ranks->size)) continue;
            c.codec = CODED_CASES[k];
            c.scale = 1;
            c.bad = -1;
            run_case(&self, &c);
            c.op = HVD_AVERAGE;
            c.scale = s % 2 ? 0.25 : 1;
            c.bad = s > 1 && !codec_is_cast(c.codec) ? ranks->size - 1 : -1;
            run_case(&self, &c);
        }
    }
    free_memory(&self);
}

static coded_way *chosen = coll_coded, *scattered = coll_coded_scattered;

TEST(test_every_codec_gives_right_sums_by_messages) {
    for (int size = 1; size <= MOST_RANKS; size = more_ranks(size)) {
        ranks_run(size, all_cases, &chosen);
        ranks_run(size, all_cases, &scattered);
    }
}

TEST(test_every_codec_gives_right_sums_on_a_window) {
    for (int size = 1; size <= 5; size += 2) ranks_run_on_window(size, all_cases, &chosen);
}

TEST(test_every_codec_gives_right_sums_on_several_hosts) {
    ranks_run_hub(6, local_hub_new(6, 1), all_cases, &chosen);
    ranks_run_hub(5, local_hub_new(5, 2), all_cases, &chosen);
    ranks_run_hub(5, hub_of(5, 2, true), all_cases, &chosen);
}

TEST(test_messages_longer_than_a_segment_are_sent_whole) {
    for (int i = 0; i < 6; i++) {
        int size = 2 + i / 2;
        struct local_hub *hub = hub_of(size, 0, false);
        ranks_run_hub(size, hub_at(hub, (struct pace){64, 3}, COST_ON_A_HOST), all_cases,
                      i % 2 ? &scattered : &chosen);
    }
}

/* ---- bytes ---- */

struct count {
    struct codec codec;
    size_t n;
    struct stats stats; /* sum over all ranks */
};

static void count_bytes(struct ranks *ranks, int rank, void *shared) {
    struct count *count = shared;
    struct coded_rank self = {.t = rank_transport(ranks, rank), .way = coll_coded};
    struct coded_case c = {
        .codec = count->codec, .scale = 1, .bad = -1, .sizes = {count->n}, .ntensors = 1};
    self.t->stats = &count->stats;
    run_case(&self, &c);
    free_memory(&self);
}

/* Returns the bytes that each rank sends for a value, with messages and `on_host` ranks per
 * host. */
static double bytes_a_value(struct codec codec, int ranks, int on_host, size_t n) {
    struct count count = {.codec = codec, .n = n};
    ranks_run_hub(ranks, local_hub_new(ranks, on_host), count_bytes, &count);
    return (double)count.stats.bytes_sent_network / ranks / (double)count.n;
}

/* The algorithm "gathered" is chosen between hosts for at most 5 ranks (2bit) or 9 ranks (1bit),
 * "scattered" for more; on one host "scattered" for 3 or more ranks and messages of at least 8 KiB.
 * "scattered" sends (p - 1) / p of the message, and (p - 1) / p bytes for each value. */
TEST(test_bytes_sent_between_hosts_are_the_fewest) {
    enum { SHORT = 16 * 1024, LONG = 64 * 1024 };
    struct codec two = {HVD_CODEC_2BIT, 1}, one = {HVD_CODEC_1BIT, 0},
                 top = {HVD_CODEC_TOPK, 1.0 / 64};
    /* A ring of two ranks would send 4 bytes per value, 16 times the bytes of a code. */
    CHECK_NEAR(bytes_a_value(two, 2, 1, SHORT), 0.25, 1e-3);
    CHECK_NEAR(bytes_a_value(two, 5, 1, LONG), 4 * 0.25, 1e-3);
    CHECK_NEAR(bytes_a_value(two, 6, 1, SHORT), 5.0 / 6 * 1.25, 1e-2);
    CHECK_NEAR(bytes_a_value(two, 9, 1, SHORT), 8.0 / 9 * 1.25, 1e-2);
    CHECK_NEAR(bytes_a_value(one, 2, 1, SHORT), 0.125, 1e-3);
    CHECK_NEAR(bytes_a_value(one, 8, 1, SHORT), 7 * 0.125, 1e-2);
    CHECK_NEAR(bytes_a_value(top, 4, 1, SHORT), 3 * 8.0 / 64, 1e-3);
    CHECK_NEAR(bytes_a_value(two, 2, 2, LONG), 0.25, 1e-3);
    CHECK_NEAR(bytes_a_value(two, 4, 4, SHORT), 3 * 0.25, 1e-2);
    CHECK_NEAR(bytes_a_value(two, 4, 4, LONG), 3.0 / 4 * 1.25, 1e-2);
    CHECK_NEAR(bytes_a_value(one, 3, 3, 2 * LONG), 2.0 / 3 * 1.125, 1e-2);
    for (int p = 2; p <= 5; p = more_ranks(p))
        CHECK_NEAR(bytes_a_value(CODED_CASES[0], p, 1, LONG), 2 * 2.0 * (p - 1) / p, 1e-2);
}
