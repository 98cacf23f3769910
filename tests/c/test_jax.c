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

static int plans, dropped, groups;
static char planned[HVD_MAX_NAME];
static int64_t count;

static hvd_handle *plan(const hvd_tensor *tensor, hvd_error *err) {
    if (err->code) return NULL;
    snprintf(planned, sizeof planned, "%s", tensor->name);
    count = *tensor->dims * (tensor->dtype == HVD_UINT8 ? 1 : 4);
    return plans++, (hvd_handle *)&plans;
}
static int run(hvd_handle *plan_of_it, const void *in, void *out, double seconds) {
    (void)seconds;
    memcpy(out, in, (size_t)count);
    return plan_of_it == (hvd_handle *)&plans;
}
static void drop(hvd_handle *handle) { dropped += handle == (hvd_handle *)&plans; }

static core_function find(const char *name) {
    if (!strcmp(name, "hvd_plan")) return (core_function)plan;
    if (!strcmp(name, "hvd_run")) return (core_function)run;
    return strcmp(name, "hvd_drop") ? NULL : (core_function)drop;
}
static int open_one(const int *ranks, int size, char *text, int room_of_text) {
    (void)text, (void)room_of_text;
    CHECK(size == 2 && ranks[0] == 2 && ranks[1] == 0);
    return ++groups;
}

static const char *said(int code) {
    static char text[sizeof clique_failure];
    int length;
    CHECK_INT(code, 1);
    MPIABI_Error_string(code, text, &length);
    CHECK_INT(length, strlen(text));
    return text;
}

/* Announces the communicator of ranks 2 and 0, of which this rank is the second. */
static mpi_handle announced(void) {
    mpi_handle comm = 0;
    hvdlite_jax_begin(find, 0, 3, open_one);
    CHECK_INT(hvdlite_jax_expect((const int[]){2, 0}, 2, 1, 7), 0);
    CHECK_INT(MPIABI_Comm_split(WORLD, 7, 1, &comm), 0);
    return comm;
}

static int sum(const float *in, float *out, mpi_handle comm) {
    return MPIABI_Allreduce(in, out, 2, MPIABI_FLOAT, MPIABI_SUM, comm);
}

TEST(test_a_communicator_opens_at_its_first_collective_which_is_planned_once) {
    float in[2] = {1, 2}, out[2] = {0};
    mpi_handle comm = announced();
    /* XLA makes the communicator by a first sum, for which nothing is sent */
    CHECK_INT(sum(in, out, comm), 0);
    CHECK_INT(hvdlite_jax_expected(NULL), 1);
    CHECK(plans == 0 && groups == 0 && out[1] == 2);
    for (int i = 0; i < 3; i++) CHECK_INT(sum(in, out, comm), 0);
    CHECK(plans == 1 && groups == 1);
    CHECK_TEXT(planned, "jax.2,0");
    free(clique_of(comm)->plans[2]);
    free(clique_of(comm));
}

TEST(test_a_communicator_that_was_not_announced_is_an_error) {
    float in[2] = {1, 2}, out[2];
    mpi_handle comm = announced(), other = 0;
    CHECK_INT(hvdlite_jax_expected("it is of no use"), 1);
    CHECK_TEXT(said(sum(in, out, comm)), "it is of no use");
    CHECK_INT(MPIABI_Comm_split(WORLD, 7, 1, &other), 0);
    CHECK_HAS(said(sum(in, out, other)), "were not announced (first device 7");
    CHECK_HAS(said(MPIABI_Bcast()), "calls a function of MPI that hvdlite does not provide");
    free(clique_of(comm));
    free(clique_of(other));
}

TEST(test_without_memory_a_collective_fails_and_frees_its_plan) {
    float in[2] = {1, 2}, out[2];
    mpi_handle comm = announced(), other;
    hvdlite_jax_expected(NULL);
    no_memory = true;
    CHECK_INT(hvdlite_jax_expect((const int[]){2, 0}, 2, 1, 7), 1);
    CHECK_HAS(said(MPIABI_Comm_split(WORLD, 7, 1, &other)), "no memory for a group of 3 ranks");
    CHECK_HAS(said(sum(in, out, comm)), "no memory");
    CHECK_INT(dropped, 1);
    no_memory = false;
    free(clique_of(comm));
}
