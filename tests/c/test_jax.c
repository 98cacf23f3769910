#include "check.h"

/* The functions of MPI that XLA calls, on a mock of hvdlite's core, whose collectives return
 * their input. */
static bool no_memory;
#define malloc(bytes) (no_memory ? NULL : malloc(bytes))
#define calloc(n, bytes) (no_memory ? NULL : calloc(n, bytes))
#include "../../hvdlite/jax/clique.c"
#include "../../hvdlite/jax/library.c"
#undef malloc
#undef calloc

static int plans, dropped, runs;
static bool ends; /* a run, before hvd_run returns */
static char planned[HVD_MAX_NAME];
static int64_t count;

static hvd_handle *plan(const hvd_tensor *tensor, hvd_error *err) {
    if (err->code) return NULL;
    snprintf(planned, sizeof planned, "%s", tensor->name);
    count = *tensor->dims * (tensor->dtype == HVD_FLOAT32 ? 4 : 1);
    return plans++, (hvd_handle *)&plans;
}
static int run(hvd_handle *plan_of_it, const void *in, void *out, double seconds) {
    CHECK_INT(seconds < 0, !ends);
    runs++;
    if (in && out) memcpy(out, in, (size_t)count);
    return ends && plan_of_it == (hvd_handle *)&plans;
}
static int finish(hvd_handle *handle, double seconds, hvd_error *err) {
    (void)handle, (void)seconds;
    return err->code == HVD_OK;
}
static void drop(hvd_handle *handle) { dropped += handle == (hvd_handle *)&plans; }

static core_function find(const char *name) {
    if (!strcmp(name, "hvd_plan")) return (core_function)plan;
    if (!strcmp(name, "hvd_run")) return (core_function)run;
    if (!strcmp(name, "hvd_finish")) return (core_function)finish;
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

static int expect(void) { return hvdlite_jax_expect("jax.2,0", (const int[]){2, 0}, 2, 1, 7); }

/* Announces the communicator of ranks 2 and 0, of which this rank is the second. */
static mpi_handle announced(void) {
    mpi_handle comm = 0;
    hvdlite_jax_begin(find, 0, 3);
    CHECK_INT(expect(), 0);
    CHECK_INT(MPIABI_Comm_split(WORLD, 7, 1, &comm), 0);
    plans = dropped = runs = 0, ends = true;
    return comm;
}

static void end(mpi_handle comm) {
    struct clique *c = clique_of(comm);
    for (int i = 0; i < PLANS; i++)
        for (struct plan *p = c->plans[i], *next; p; p = next) {
            next = p->next;
            free(p);
        }
    free(c->scratch);
    free(c);
}

static int sum(const float *in, float *out, mpi_handle comm) {
    return MPIABI_Allreduce(in, out, 2, MPIABI_FLOAT, MPIABI_SUM, comm);
}

TEST(test_an_announced_clique_plans_a_collective_once) {
    float in[2] = {1, 2}, out[2] = {0};
    mpi_handle comm = announced();
    /* XLA makes the communicator by a first sum, for which nothing is sent */
    CHECK_INT(sum(in, out, comm), 0);
    CHECK(hvdlite_jax_expected() == clique_of(comm));
    CHECK(plans == 0 && out[1] == 2);
    hvdlite_jax_open(clique_of(comm), 1);
    for (int i = 0; i < 3; i++) CHECK_INT(sum(in, out, comm), 0);
    CHECK(plans == 1 && runs == 3);
    CHECK_TEXT(planned, "jax.2,0");
    end(comm);
}

TEST(test_a_plan_of_a_message_is_used_by_one_message_at_a_time) {
    char in[8] = "message", out[8];
    mpi_handle comm = announced(), first, second;
    hvdlite_jax_open(hvdlite_jax_expected(), 1);
    ends = false;
    CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, comm, &first), 0);
    CHECK_TEXT(planned, "jax.2,0.0-2");
    CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, comm, &second), 0);
    CHECK(plans == 2 && first != second);
    CHECK_INT(MPIABI_Wait(&first, NULL), 0);
    CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, comm, &first), 0);
    CHECK(plans == 2 && runs == 3);
    CHECK_INT(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, comm, &second), 0);
    CHECK_INT(runs, 3);
    CHECK_INT(MPIABI_Wait(&second, NULL), 0);
    CHECK_TEXT(planned, "jax.2,0.2-0");
    CHECK_INT(runs, 4);
    end(comm);
}

TEST(test_two_ranks_that_both_send_exchange_by_one_collective) {
    char in[8] = "message", out[8] = "";
    mpi_handle comm = announced(), requests[2];
    hvdlite_jax_open(hvdlite_jax_expected(), 1);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, comm, &requests[0]), 0);
        CHECK_INT(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, comm, &requests[1]), 0);
        CHECK_TEXT(out, "message"); /* the first part, of rank 2 */
        for (int k = 0; k < 2; k++) CHECK_INT(MPIABI_Wait(&requests[k], NULL), 0);
    }
    CHECK(plans == 1 && runs == 2);
    CHECK_TEXT(planned, "jax.2,0");
    end(comm);
}

TEST(test_a_communicator_that_was_not_announced_is_an_error) {
    float in[2] = {1, 2}, out[2];
    mpi_handle comm = announced(), other = 0;
    CHECK_INT(expect(), 0);
    CHECK(!hvdlite_jax_expected()); /* XLA has had the communicator before */
    CHECK_INT(MPIABI_Comm_split(WORLD, 7, 1, &other), 0);
    CHECK_HAS(said(sum(in, out, other)), "were not announced (first device 7");
    CHECK_HAS(said(MPIABI_Bcast()), "calls a function of MPI that hvdlite does not provide");
    end(comm);
    end(other);
}

TEST(test_a_clique_whose_group_is_not_open_refuses_all) {
    float in[2] = {1, 2}, out[2];
    mpi_handle comm = announced(), request;
    hvdlite_jax_expected();
    CHECK_HAS(said(sum(in, out, comm)), "were not announced (jax.2,0)");
    CHECK_HAS(said(MPIABI_Isend(in, 8, MPIABI_BYTE, 0, 0, comm, &request)), "not announced");
    CHECK_INT(MPIABI_Irecv(out, 8, MPIABI_BYTE, 0, 0, comm, &request), 0);
    CHECK_HAS(said(MPIABI_Wait(&request, NULL)), "not announced");
    CHECK_HAS(said(sum(in, out, comm)), "not announced");
    end(comm);
}

TEST(test_without_memory_a_collective_fails_and_frees_its_plan) {
    float in[2] = {1, 2}, out[2];
    mpi_handle comm = announced(), other;
    hvdlite_jax_open(hvdlite_jax_expected(), 1);
    no_memory = true;
    CHECK_INT(expect(), 1);
    CHECK_HAS(said(MPIABI_Comm_split(WORLD, 7, 1, &other)), "no memory for a group of 3 ranks");
    CHECK_HAS(said(sum(in, out, comm)), "no memory");
    CHECK_INT(dropped, 1);
    no_memory = false;
    end(comm);
}
