#include "check.h"

/* The functions of MPI that XLA calls, on a mock of hvdlite's core whose collectives return their
 * inputs. */
static bool no_memory;
#define calloc(n, bytes) (no_memory ? NULL : calloc(n, bytes))
#include "../../hvdlite/jax/library.c"
#undef calloc

static int plans, dropped, runs, waits;
static bool ends;  /* true: a run ends before hvd_run returns */
static bool fails; /* true: runs end with an error */
static char planned[HVD_MAX_NAME];

static struct mock {
    hvd_tensor tensor;
    int64_t dims[2], count; /* count: bytes */
} mocks[4 * PLANS];

static hvd_handle *plan(const hvd_tensor *tensor, hvd_error *err) {
    CHECK_INT(tensor->group, 1); /* the group of every clique here */
    if (tensor->dims[0] == 99) return error_set(err, HVD_INVALID, "99 elements"), NULL;
    snprintf(planned, sizeof planned, "%s", tensor->name);
    struct mock *m = &mocks[plans++];
    m->tensor = *tensor, m->count = tensor->dtype == HVD_FLOAT32 ? 4 : 1;
    for (int d = 0; d < tensor->ndim; d++) m->count *= m->dims[d] = tensor->dims[d];
    return (hvd_handle *)m;
}
static bool plan_fits(const hvd_handle *handle, const hvd_tensor *tensor) {
    const struct mock *m = (const struct mock *)handle;
    const hvd_tensor *own = &m->tensor;
    return own->kind == tensor->kind && own->root == tensor->root && own->ndim == tensor->ndim &&
           !memcmp(m->dims, tensor->dims, (size_t)own->ndim * sizeof *m->dims);
}
static int run_plan(hvd_handle *handle, const void *in, void *out, double seconds) {
    const struct mock *m = (struct mock *)handle;
    const int64_t listed = m->tensor.listed ? m->dims[0] : 0;
    CHECK_INT(seconds < 0, !ends);
    runs++;
    if (in && out && !listed) memcpy(out, in, (size_t)m->count);
    for (int64_t i = 0; i < listed; i++) {
        const void *part = ((const void *const *)in)[i];
        if (part) memcpy(((void *const *)out)[i], part, (size_t)(m->count / listed));
    }
    return ends && !fails;
}
static int finish(hvd_handle *handle, double seconds, hvd_error *err) {
    CHECK(handle && seconds > 1e6);
    if (++waits % 2) return 0; /* every second call returns too early */
    if (err) err->code = HVD_OK;
    if (err && fails) *err = (hvd_error){.code = HVD_MISMATCH, .text = "ranks differ"};
    return 1;
}
static void keep_failure(hvd_error *err) { strcat(err->text, " [hvdlite error 1]"); }
static void drop(hvd_handle *handle) { dropped += handle != NULL; }

static core_function find(const char *function) {
    if (!strcmp(function, "hvd_plan")) return (core_function)plan;
    if (!strcmp(function, "hvd_plan_fits")) return (core_function)plan_fits;
    if (!strcmp(function, "hvd_run")) return (core_function)run_plan;
    if (!strcmp(function, "hvd_finish")) return (core_function)finish;
    if (!strcmp(function, "hvd_keep_failure")) return (core_function)keep_failure;
    return strcmp(function, "hvd_drop") ? NULL : (core_function)drop;
}

static const char *said(int code) {
    static char text[sizeof failure];
    int length;
    CHECK_INT(code, 1);
    MPIABI_Error_string(code, text, &length);
    CHECK_INT(length, strlen(text));
    return text;
}

static struct clique *announce(void) { return hvdlite_jax_announce("jax.2,0", 2, 1, 7); }

/* Announces the communicator of ranks 2 and 0, in this order; this rank is 0 of the job. */
static struct clique *announced(void) {
    struct clique *c = NULL;
    hvdlite_jax_begin(find, 0, 3);
    CHECK(announce() != NULL);
    CHECK_INT(MPIABI_Comm_split(&jax.world, 7, 1, &c), 0);
    plans = dropped = runs = waits = 0, ends = true, fails = false;
    return c;
}

/* Like announced(), with an open group. */
static struct clique *opened(void) {
    struct clique *c = announced();
    CHECK(hvdlite_jax_withdraw(c));
    hvdlite_jax_open(c, 1);
    return c;
}

static int sum(const float *in, float *out, struct clique *c) {
    return MPIABI_Allreduce(in, out, 2, MPIABI_FLOAT, MPIABI_SUM, c);
}

TEST(test_a_clique_plans_a_collective_once) {
    float in[2] = {1, 2}, out[2] = {0};
    struct clique *c = opened();
    for (int i = 0; i < 3; i++) CHECK_INT(sum(in, out, c), 0);
    CHECK(plans == 1 && runs == 3 && waits == 0 && out[1] == 2);
    CHECK_TEXT(planned, "jax.2,0");
    fails = true;
    CHECK_HAS(said(sum(in, out, c)), "ranks differ [hvdlite error 1]");
    CHECK_HAS(said(MPIABI_Allreduce(in, out, 99, MPIABI_FLOAT, MPIABI_SUM, c)), "99 elements [h");
    CHECK(plans == 1 && dropped == 0);
    free(c);
}

TEST(test_a_communicator_of_xla_refuses_a_second_send_before_the_wait_for_the_first) {
    char in[8] = "message", out[8];
    struct clique *c = opened();
    char *sent, *received, *second;
    for (int i = 0; i < 2; i++) {
        ends = false;
        CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 1 - i, 0, c, &sent), 0);
        CHECK_INT(mocks[plans - 1].tensor.root, 1 - i); /* the receiver's rank in the clique */
        CHECK_HAS(said(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &second)), "a second message");
        CHECK_INT(MPIABI_Wait(&sent, NULL), 0);
        ends = true;
        CHECK_INT(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, c, &received), 0);
        CHECK_INT(runs, 2 * i + 1);
        CHECK_INT(MPIABI_Wait(&received, NULL), 0);
        CHECK(plans == 2 + i && runs == 2 * i + 2); /* a message to another rank: a new plan */
    }
    free(c);
}

/* After an error XLA does not wait for other requests, but frees the memory of all requests. */
TEST(test_a_receive_that_fails_returns_after_the_send_has_ended) {
    char in[8] = "message", out[9];
    struct clique *c = opened();
    char *sent, *received;
    for (int i = 1; i < 3; i++) {
        ends = false;
        CHECK_INT(MPIABI_Irecv(out, 9, MPIABI_BYTE, 0, 0, c, &received), 0);
        CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &sent), 0);
        ends = fails = true;
        CHECK_HAS(said(MPIABI_Wait(&received, NULL)), "ranks differ");
        CHECK(plans == 2 && waits == 4 * i);
    }
    free(c);
}

TEST(test_a_clique_keeps_a_limited_number_of_plans) {
    static char in[8 * PLANS], out[8 * PLANS];
    struct clique *c = opened();
    for (int i = 100; i < 4 * PLANS; i++)
        CHECK_INT(MPIABI_Reduce_scatter(in, out, (const int[]){i, i}, MPIABI_BYTE, MPIABI_SUM, c),
                  0);
    CHECK(plans == 4 * PLANS - 100 && plans - dropped <= PLANS);
    free(c);
}

/* Sizes of tensors are mostly multiples of PLANS. */
TEST(test_repeated_calls_of_round_sizes_rarely_replace_each_others_plans) {
    enum { SIZES = 20 };
    static char in[PLANS * SIZES], out[PLANS * SIZES];
    struct clique *c = opened();
    int before = 0;
    for (int round = 0; round < 2; round++) {
        before = plans;
        for (int i = 1; i <= SIZES; i++)
            CHECK_INT(MPIABI_Allreduce(in, out, PLANS * i, MPIABI_BYTE, MPIABI_SUM, c), 0);
    }
    CHECK(plans - before <= SIZES / 4);
    free(c);
}

TEST(test_two_ranks_that_send_to_each_other_use_one_collective) {
    char in[8] = "message", out[8] = "";
    struct clique *c = opened();
    char *sent, *received;
    for (int i = 0; i < 2; i++) {
        CHECK_INT(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, c, &received), 0);
        CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &sent), 0);
        CHECK_TEXT(out, "message"); /* the first part is from rank 2 */
        CHECK_INT(MPIABI_Wait(&received, NULL), 0);
        CHECK_INT(MPIABI_Wait(&sent, NULL), 0);
    }
    CHECK(plans == 1 && runs == 2);
    CHECK_TEXT(planned, "jax.2,0");
    free(c);
}

TEST(test_a_communicator_that_was_not_announced_is_an_error) {
    float in[2] = {1, 2}, out[2];
    struct clique *c = announced(), *late = announce(), *other = NULL;
    CHECK(!hvdlite_jax_withdraw(late)); /* XLA already had this communicator */
    CHECK_INT(MPIABI_Comm_split(&jax.world, 7, 1, &other), 0);
    CHECK_HAS(said(sum(in, out, other)), "were not announced (first device 7");
    CHECK_HAS(said(hvdlite_unused_function()),
              "calls a function of MPI that hvdlite does not provide");
    free(c);
    free(late);
}

TEST(test_a_collective_of_xla_without_hvd_init_is_an_error) {
    float in[2] = {1, 2}, out[2];
    struct clique *c = NULL;
    hvdlite_jax_begin(find, 0, 0); /* as before hvd.init(): the world has no size */
    CHECK_INT(MPIABI_Comm_split(&jax.world, 7, 1, &c), 0);
    CHECK_HAS(said(sum(in, out, c)), "compiled or loaded before hvd.init()");
}

TEST(test_a_communicator_of_xla_without_an_open_group_refuses_each_call) {
    float in[2] = {1, 2}, out[2];
    struct clique *c = announced();
    char *sent, *received;
    CHECK(hvdlite_jax_withdraw(c));
    CHECK_HAS(said(sum(in, out, c)), "were not announced (jax.2,0)");
    CHECK_HAS(said(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &sent)), "not announced");
    CHECK_HAS(said(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, c, &received)), "not announced");
    free(c);
}

TEST(test_without_memory_no_clique_is_announced) {
    hvdlite_jax_begin(find, 0, 3);
    no_memory = true;
    CHECK(announce() == NULL);
    no_memory = false;
}

/* XLA calls Sendrecv with the next and the previous rank, then with the ranks after these. */
TEST(test_an_all_to_all_is_one_collective) {
    hvdlite_jax_begin(find, 0, 3);
    struct clique *c = hvdlite_jax_announce("jax.0,1,2", 3, 0, 7);
    const char in[3][8] = {"own", "for 1", "for 2"};
    char out[3][8] = {"", "", ""};
    hvdlite_jax_open(c, 1);
    runs = 0, ends = true, fails = false;
    for (int to = 1, from = 2; to < 3; to++, from--)
        CHECK_INT(MPIABI_Sendrecv(in[to], 8, MPIABI_BYTE, to, 0, out[from], 8, MPIABI_BYTE, from, 0,
                                  c, NULL),
                  0);
    CHECK_INT(runs, 1);
    for (int r = 0; r < 3; r++) CHECK_TEXT(out[r], r ? in[r] : "");
    CHECK_HAS(said(MPIABI_Sendrecv(in, 8, MPIABI_BYTE, 2, 0, out, 8, MPIABI_BYTE, 1, 0, c, NULL)),
              "in the order that hvdlite knows");
    free(c);
}

TEST(test_an_unknown_type_or_operation_is_an_error) {
    float in[2] = {1, 2}, out[2];
    struct clique *c = opened();
    CHECK_HAS(said(MPIABI_Allreduce(in, out, 2, NULL, MPIABI_SUM, c)), "lacks the dtype");
    CHECK_HAS(said(MPIABI_Allgather(in, 2, NULL, out, 2, NULL, c)), "lacks the dtype");
    CHECK_HAS(said(MPIABI_Allreduce(in, out, 2, MPIABI_FLOAT, 0, c)), "an operation that");
    CHECK_HAS(said(MPIABI_Allreduce(in, out, 1, MPIABI_C_COMPLEX, MPIABI_MAX, c)), "summed only");
    CHECK_INT(runs, 0);
    free(c);
}
