#include "check.h"

/* The functions of MPI that XLA calls, on a mock of hvdlite's core whose collectives return their
 * inputs. */
static bool no_memory;
#define malloc(bytes) (no_memory ? NULL : malloc(bytes))
#define calloc(n, bytes) (no_memory ? NULL : calloc(n, bytes))
#include "../../hvdlite/jax/clique.c"
#include "../../hvdlite/jax/library.c"
#undef malloc
#undef calloc

static int plans, dropped, runs;
static bool ends;  /* true: a run ends before hvd_run returns */
static bool fails; /* true: runs end with an error */
static int waits;  /* calls of hvd_finish */
static char planned[HVD_MAX_NAME];
static int64_t count, listed; /* listed: number of parts of a listed alltoall */

static hvd_handle *plan(const hvd_tensor *tensor, hvd_error *err) {
    if (err->code) return NULL;
    snprintf(planned, sizeof planned, "%s", tensor->name);
    count = tensor->dtype == HVD_FLOAT32 ? 4 : 1;
    for (int d = 0; d < tensor->ndim; d++) count *= tensor->dims[d];
    listed = tensor->listed ? tensor->dims[0] : 0;
    return plans++, (hvd_handle *)&plans;
}
static int run(hvd_handle *plan_of_it, const void *in, void *out, double seconds) {
    CHECK_INT(seconds < 0, !ends);
    runs++;
    if (in && out && !listed) memcpy(out, in, (size_t)count);
    for (int64_t i = 0; i < listed; i++) {
        const void *part = ((const void *const *)in)[i];
        if (part) memcpy(((void *const *)out)[i], part, (size_t)(count / listed));
    }
    return ends && !fails && plan_of_it == (hvd_handle *)&plans;
}
static int finish(hvd_handle *handle, double seconds, hvd_error *err) {
    (void)handle, (void)seconds;
    CHECK(!err || err->code == HVD_OK);
    if (err && fails) *err = (hvd_error){.code = HVD_MISMATCH, .text = "ranks differ"};
    return ++waits;
}
static void keep_failure(hvd_error *err) { strcat(err->text, " [hvdlite error 1]"); }
static void drop(hvd_handle *handle) { dropped += handle == (hvd_handle *)&plans; }

static core_function find(const char *name) {
    if (!strcmp(name, "hvd_plan")) return (core_function)plan;
    if (!strcmp(name, "hvd_run")) return (core_function)run;
    if (!strcmp(name, "hvd_finish")) return (core_function)finish;
    if (!strcmp(name, "hvd_keep_failure")) return (core_function)keep_failure;
    return strcmp(name, "hvd_drop") ? NULL : (core_function)drop;
}

static const char *said(int code) {
    static char text[sizeof clique_failure];
    int length;
    CHECK_INT(code, 1);
    MPIABI_Error_string(code, text, &length);
    CHECK_INT(length, strlen(text));
    return text;
}

static struct clique *announce(void) {
    return hvdlite_jax_announce("jax.2,0", (const int[]){2, 0}, 2, 1, 7);
}

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

static void end(struct clique *c) { free(c); }

static int sum(const float *in, float *out, struct clique *c) {
    return MPIABI_Allreduce(in, out, 2, MPIABI_FLOAT, MPIABI_SUM, c);
}

TEST(test_an_announced_clique_plans_a_collective_once) {
    float in[2] = {1, 2}, out[2] = {0};
    struct clique *c = opened();
    for (int i = 0; i < 3; i++) CHECK_INT(sum(in, out, c), 0);
    CHECK(plans == 1 && runs == 3 && out[1] == 2);
    CHECK_TEXT(planned, "jax.2,0");
    end(c);
}

TEST(test_a_plan_of_a_message_is_used_by_one_message_at_a_time) {
    char in[8] = "message", out[8];
    struct clique *c = opened();
    struct plan *first, *second;
    char *received;
    ends = false;
    CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &first), 0);
    CHECK_TEXT(planned, "jax.2,0.0-2");
    CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &second), 0);
    CHECK(plans == 2 && first != second);
    CHECK_INT(MPIABI_Wait((char **)&first, NULL), 0);
    CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &first), 0);
    CHECK(plans == 2 && runs == 3);
    ends = true;
    CHECK_INT(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, c, &received), 0);
    CHECK_INT(runs, 3);
    CHECK_INT(MPIABI_Wait(&received, NULL), 0);
    CHECK_TEXT(planned, "jax.2,0.2-0");
    CHECK_INT(runs, 4);
    end(c);
}

/* After an error XLA waits for no other request, but frees the memory of all. */
TEST(test_a_failed_receive_waits_for_the_send) {
    char in[8] = "message", out[9];
    struct clique *c = opened();
    struct plan *sent;
    char *received;
    for (int i = 0; i < 2 * NEAR; i++) {
        ends = fails = false, waits = 0;
        CHECK_INT(MPIABI_Irecv(out, 9, MPIABI_BYTE, 0, 0, c, &received), 0);
        CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &sent), 0);
        ends = fails = true;
        CHECK_HAS(said(MPIABI_Wait(&received, NULL)), "ranks differ");
        CHECK_INT(waits, 2);
    }
    CHECK_INT(plans, 2);
    end(c);
}

TEST(test_two_ranks_that_send_to_each_other_use_one_collective) {
    char in[8] = "message", out[8] = "";
    struct clique *c = opened();
    struct plan *sent;
    char *received;
    for (int i = 0; i < 2; i++) {
        CHECK_INT(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, c, &received), 0);
        CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &sent), 0);
        CHECK_TEXT(out, "message"); /* the first part is from rank 2 */
        CHECK_INT(MPIABI_Wait(&received, NULL), 0);
        CHECK_INT(MPIABI_Wait((char **)&sent, NULL), 0);
    }
    CHECK(plans == 1 && runs == 2);
    CHECK_TEXT(planned, "jax.2,0");
    end(c);
}

TEST(test_a_clique_keeps_a_limited_number_of_plans) {
    static char in[4 * PLANS];
    struct clique *c = opened();
    struct plan *sent[NEAR + 1];
    ends = false;
    for (int i = 1; i <= 4 * PLANS; i++) {
        CHECK_INT(MPIABI_Isend(in, i, MPIABI_BYTE, 0, 0, c, sent), 0);
        CHECK_INT(MPIABI_Wait((char **)sent, NULL), 0);
        CHECK(plans - dropped <= PLANS);
    }
    CHECK_INT(plans, 4 * PLANS);
    for (int i = 0; i < NEAR; i++)
        CHECK_INT(MPIABI_Isend(in, 9, MPIABI_BYTE, 0, 0, c, &sent[i]), 0);
    CHECK_HAS(said(MPIABI_Isend(in, 9, MPIABI_BYTE, 0, 0, c, &sent[NEAR])), "too many messages");
    CHECK_INT(MPIABI_Wait((char **)&sent[0], NULL), 0);
    CHECK_INT(MPIABI_Isend(in, 9, MPIABI_BYTE, 0, 0, c, &sent[NEAR]), 0);
    end(c);
}

TEST(test_a_communicator_that_was_not_announced_is_an_error) {
    float in[2] = {1, 2}, out[2];
    struct clique *c = announced(), *late = announce(), *other = NULL;
    CHECK(!hvdlite_jax_withdraw(late)); /* XLA already had this communicator */
    CHECK_INT(MPIABI_Comm_split(&jax.world, 7, 1, &other), 0);
    CHECK_HAS(said(sum(in, out, other)), "were not announced (first device 7");
    CHECK_HAS(said(MPIABI_Bcast()), "calls a function of MPI that hvdlite does not provide");
    end(c);
    end(late);
}

TEST(test_a_clique_whose_group_is_not_open_refuses_all) {
    float in[2] = {1, 2}, out[2];
    struct clique *c = announced();
    struct plan *sent;
    char *received;
    CHECK(hvdlite_jax_withdraw(c));
    CHECK_HAS(said(sum(in, out, c)), "were not announced (jax.2,0)");
    CHECK_HAS(said(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, c, &sent)), "not announced");
    CHECK_HAS(said(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, c, &received)), "not announced");
    end(c);
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
    struct clique *c = hvdlite_jax_announce("jax.0,1,2", (const int[]){0, 1, 2}, 3, 0, 7);
    const char in[3][8] = {"own", "for 1", "for 2"};
    char out[3][8] = {"", "", ""};
    hvdlite_jax_open(c, 1);
    plans = runs = 0, ends = true;
    for (int to = 1, from = 2; to < 3; to++, from--)
        CHECK_INT(MPIABI_Sendrecv(in[to], 8, MPIABI_BYTE, to, 0, out[from], 8, MPIABI_BYTE, from, 0,
                                  c, NULL),
                  0);
    CHECK(runs == 1 && listed == 3);
    for (int r = 0; r < 3; r++) CHECK_TEXT(out[r], r ? in[r] : "");
    CHECK_HAS(said(MPIABI_Sendrecv(in, 8, MPIABI_BYTE, 2, 0, out, 8, MPIABI_BYTE, 1, 0, c, NULL)),
              "in the order that hvdlite knows");
    end(c);
}

TEST(test_an_unknown_type_or_operation_is_an_error) {
    float in[2] = {1, 2}, out[2];
    struct clique *c = opened();
    CHECK_HAS(said(MPIABI_Allreduce(in, out, 2, NULL, MPIABI_SUM, c)), "a type that");
    CHECK_HAS(said(MPIABI_Allgather(in, 2, NULL, out, 2, NULL, c)), "a type that");
    CHECK_HAS(said(MPIABI_Allreduce(in, out, 2, MPIABI_FLOAT, 0, c)), "an operation that");
    CHECK_HAS(said(MPIABI_Allreduce(in, out, 1, MPIABI_C_COMPLEX, MPIABI_MAX, c)), "summed only");
    CHECK_INT(runs, 0);
    end(c);
}
