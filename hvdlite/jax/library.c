/* The part of MPI that XLA's CPU collectives call, over hvdlite's core.
 *
 * Every jaxlib contains MPItrampoline, which loads the library that MPITRAMPOLINE_LIB names and
 * looks up all names of mpi_abi.h there. This library has no ranks of its own: Python hands over
 * the functions of the core that it has loaded (hvdlite_jax_begin). XLA keeps a program's
 * collectives in order and calls them from threads of its own; it passes counts as int. */
#include "clique.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uintptr_t mpi_handle;

/* A row for each type of XLA's: the core's type, bytes, how many elements of the core one
 * element is, and whether it is unsigned. Unsigned sums and products have the same bits as
 * signed ones. */
#define TYPES(ROW)                                                                                 \
    ROW(BYTE, HVD_UINT8, 1, 1, false)                                                              \
    ROW(INT8_T, HVD_INT8, 1, 1, false)                                                             \
    ROW(UINT8_T, HVD_UINT8, 1, 1, false)                                                           \
    ROW(INT16_T, HVD_INT16, 2, 1, false)                                                           \
    ROW(UINT16_T, HVD_INT16, 2, 1, true)                                                           \
    ROW(INT32_T, HVD_INT32, 4, 1, false)                                                           \
    ROW(UINT32_T, HVD_INT32, 4, 1, true)                                                           \
    ROW(INT64_T, HVD_INT64, 8, 1, false)                                                           \
    ROW(UINT64_T, HVD_INT64, 8, 1, true)                                                           \
    ROW(FLOAT, HVD_FLOAT32, 4, 1, false)                                                           \
    ROW(DOUBLE, HVD_FLOAT64, 8, 1, false)                                                          \
    ROW(C_COMPLEX, HVD_FLOAT32, 8, 2, false)                                                       \
    ROW(C_DOUBLE_COMPLEX, HVD_FLOAT64, 16, 2, false)
#define OPERATIONS(ROW) ROW(SUM, HVD_SUM) ROW(PROD, HVD_PRODUCT) ROW(MIN, HVD_MIN) ROW(MAX, HVD_MAX)

#define NUMBER(name, ...) NUMBER_##name,
enum { NO_TYPE, TYPES(NUMBER) NTYPES };
enum { NO_OPERATION, OPERATIONS(NUMBER) NOPERATIONS };

#define TYPE(name, dtype, bytes, parts, is_unsigned)                                               \
    [NUMBER_##name] = {dtype, bytes, parts, is_unsigned},
static const struct type {
    int dtype;
    size_t bytes;
    int parts;
    bool is_unsigned;
} types[NTYPES] = {TYPES(TYPE)};
#define OPERATION(name, op) [NUMBER_##name] = op,
static const int operations[NOPERATIONS] = {OPERATIONS(OPERATION)};

/* ---- the names that MPItrampoline looks up ---- */
#define CONSTANT(name, value) API const intptr_t MPIABI_##name = value;
#define NUMBERED(name, ...) CONSTANT(name, NUMBER_##name)
TYPES(NUMBERED)
OPERATIONS(NUMBERED)
CONSTANT(COMM_WORLD, 1)
CONSTANT(UNDEFINED, -32766)
CONSTANT(THREAD_FUNNELED, 1)
CONSTANT(THREAD_MULTIPLE, 3)
API const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 11,
              mpiwrapper_version_patch = 0;
API const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
API void mpiwrapper_export_fortran_constants_(void) {}

static const intptr_t unused_constant = 0;
static int unused_function(void) {
    return clique_refuse("hvdlite.jax: this jaxlib calls a function of MPI that hvdlite does not "
                         "provide: use a jaxlib that docs/jax.md lists");
}
#define UNUSED_CONSTANT(name)                                                                      \
    extern API const intptr_t MPIABI_##name __attribute__((alias("unused_constant")));
#define UNUSED_FUNCTION(name) API int MPIABI_##name(void) __attribute__((alias("unused_function")));
#define UNUSED_X_FUNCTION(name)                                                                    \
    API int MPIXABI_##name(void) __attribute__((alias("unused_function")));
#include "mpi_abi.h"
MPI_CONSTANTS(UNUSED_CONSTANT)
MPI_FUNCTIONS(UNUSED_FUNCTION)
MPIX_FUNCTIONS(UNUSED_X_FUNCTION)

/* Takes the core's functions and this rank's place in the job from Python. */
API void hvdlite_jax_begin(core_function (*find)(const char *), int rank, int size) {
    library.core = core_found(find), library.rank = rank, library.size = size;
}

/* ---- communicators ---- */
static const mpi_handle WORLD = 1; /* all ranks: XLA asks how many, and splits them */

static struct clique *clique_of(mpi_handle comm) { return (struct clique *)comm; }

API int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc, (void)argv, (void)required;
    *provided = MPIABI_THREAD_MULTIPLE;
    if (library.size) return 0;
    return clique_refuse("hvdlite.jax: call hvdlite.jax.init() before JAX's first computation");
}
/* nothing to do, because hvd.shutdown() ends the job */
API int MPIABI_Finalize(void) { return 0; }
/* always true, because any thread may open a group */
API int MPIABI_Is_thread_main(int *flag) { return *flag = 1, 0; }
API int MPIABI_Comm_rank(mpi_handle comm, int *rank) {
    return *rank = comm == WORLD ? library.rank : clique_of(comm)->rank, 0;
}
API int MPIABI_Comm_size(mpi_handle comm, int *size) {
    return *size = comm == WORLD ? library.size : clique_of(comm)->size, 0;
}
API int MPIABI_Comm_split(mpi_handle comm, int color, int key, mpi_handle *out) {
    (void)comm;
    return !(*out = (mpi_handle)clique_split(color, key));
}
/* nothing to do, because cliques end with the job */
API int MPIABI_Comm_free(mpi_handle *comm) { return *comm = 0, 0; }
API int MPIABI_Error_string(int code, char *text, int *length) {
    *length = snprintf(text, sizeof clique_failure, "%s", code ? clique_failure : "no error");
    return 0;
}

/* ---- collectives ---- */
/* NULL: a failure. */
static const struct type *type_of(mpi_handle number) {
    if (number < NTYPES && types[number].bytes) return &types[number];
    return clique_refuse("hvdlite.jax: XLA uses a type that hvdlite does not know"), NULL;
}

/* Below 0: a failure. */
static int64_t bytes_of(int count, mpi_handle type_number) {
    const struct type *type = type_of(type_number);
    if (type && count < 0) clique_refuse("hvdlite.jax: a collective of %d elements", count);
    return type ? (int64_t)count * (int64_t)type->bytes : -1;
}

/* Flips the highest bit of unsigned numbers, so that they have the order of signed ones. */
static void flip(size_t bytes, const void *in, void *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (bytes == 2) ((uint16_t *)out)[i] = (uint16_t)(((const uint16_t *)in)[i] ^ 0x8000u);
        if (bytes == 4) ((uint32_t *)out)[i] = ((const uint32_t *)in)[i] ^ 0x80000000u;
        if (bytes == 8) ((uint64_t *)out)[i] = ((const uint64_t *)in)[i] ^ (uint64_t)1 << 63;
    }
}

/* Reduces `count` elements of `in` to `out_count` elements of `out`. */
static int reduce(int kind, const void *in, void *out, int64_t count, int64_t out_count,
                  mpi_handle type_number, mpi_handle op_number, struct clique *c) {
    const struct type *type = type_of(type_number);
    if (!type || !count) return !type;
    if (!op_number || op_number >= NOPERATIONS || (type->parts > 1 && op_number != NUMBER_SUM))
        return clique_refuse("hvdlite.jax: XLA reduces by an operation that hvdlite does not know "
                             "for this type: complex numbers can be summed only");
    bool ordered = op_number == NUMBER_MIN || op_number == NUMBER_MAX;
    if (!in) in = out; /* MPI_IN_PLACE */
    if (c->size == 1 || c->group == CLIQUE_WARMING)
        return memmove(out, in, (size_t)out_count * type->bytes), 0;

    void *flipped = NULL;
    if (ordered && type->is_unsigned) {
        flipped = malloc((size_t)count * type->bytes);
        if (!flipped)
            return clique_refuse("hvdlite.jax: no memory for %lld numbers", (long long)count);
        flip(type->bytes, in, flipped, count);
    }
    const int64_t n = count * type->parts;
    hvd_tensor t = core_tensor(kind, type->dtype, &n, flipped ? flipped : in, out,
                               kind == HVD_REDUCESCATTER ? out_count * type->parts : 0);
    t.op = operations[op_number];
    int failed = clique_run(c, &t);
    if (flipped) flip(type->bytes, out, out, out_count);
    free(flipped);
    return failed;
}

API int MPIABI_Allreduce(const void *in, void *out, int count, mpi_handle type, mpi_handle op,
                         mpi_handle comm) {
    return reduce(HVD_ALLREDUCE, in, out, count, count, type, op, clique_of(comm));
}

API int MPIABI_Reduce_scatter(const void *in, void *out, const int counts[], mpi_handle type,
                              mpi_handle op, mpi_handle comm) {
    struct clique *c = clique_of(comm);
    for (int i = 1; i < c->size; i++)
        if (counts[i] != counts[0])
            return clique_refuse("hvdlite.jax: can't reduce-scatter into unequal parts");
    return reduce(HVD_REDUCESCATTER, in, out, (int64_t)counts[0] * c->size, counts[0], type, op, c);
}

API int MPIABI_Allgather(const void *in, int count, mpi_handle type, void *out, int out_count,
                         mpi_handle out_type, mpi_handle comm) {
    struct clique *c = clique_of(comm);
    (void)out_count, (void)out_type;
    const int64_t bytes = bytes_of(count, type);
    if (bytes <= 0) return bytes < 0;
    if (c->size == 1) return memmove(out, in, (size_t)bytes), 0;
    hvd_tensor t = core_tensor(HVD_ALLGATHER, HVD_UINT8, &bytes, in, out, bytes * c->size);
    return clique_run(c, &t);
}

/* Bytes from which a part is sent unpacked, in an alltoall of two ranks with splits: the
 * exchange of the splits takes little time beside such a part. */
enum { UNPACKED = 1 << 20 };

/* XLA's all_to_all is Sendrecv with the next rank and the previous one, then with those after them,
 * and so on. The last of these calls does them all as one collective; the first calls only note
 * their memory, which stays as it is until then. XLA itself copies this rank's own part. */
API int MPIABI_Sendrecv(const void *in, int count, mpi_handle type, int to, int tag, void *out,
                        int out_count, mpi_handle out_type, int from, int out_tag, mpi_handle comm,
                        void *status) {
    struct clique *c = clique_of(comm);
    (void)tag, (void)out_tag, (void)status, (void)out_type;
    const int64_t part = bytes_of(count, type);
    if (part < 0) return 1;
    const int step = (to - c->rank + c->size) % c->size, n = c->size;
    if (step == 1) c->steps = 0;
    if (step != ++c->steps || (from + step) % n != c->rank || count != out_count)
        return clique_refuse("hvdlite.jax: this jaxlib does not send an all-to-all in the order "
                             "that hvdlite knows: docs/jax.md lists the versions tested");
    c->parts[to].in = in, c->parts[from].out = out;
    if (step < n - 1) return 0;

    if (n == 2 && part >= UNPACKED) {
        const int64_t splits[2] = {c->rank ? part : 0, c->rank ? 0 : part};
        hvd_tensor t =
            core_tensor(HVD_ALLTOALL, HVD_INT8, &part, in, out, part); /* no other kind's plans */
        t.splits = splits, t.nsplits = 2;
        return clique_run(c, &t);
    }
    const int64_t bytes = part * n;
    char *packed = clique_scratch(c, 2 * bytes), *came = packed + bytes;
    if (!packed) return 1;
    for (int i = 0; i < n; i++)
        if (i != c->rank) memcpy(packed + i * part, c->parts[i].in, (size_t)part);
    hvd_tensor t = core_tensor(HVD_ALLTOALL, HVD_UINT8, &bytes, packed, came, bytes);
    int failed = clique_run(c, &t);
    for (int i = 0; i < n && !failed; i++)
        if (i != c->rank) memcpy(c->parts[i].out, came + i * part, (size_t)part);
    return failed;
}

/* ---- between two ranks ---- */
/* XLA's ppermute is Irecv, if this rank receives, and Isend, if it sends; then it waits. */

/* NULL: a failure. */
static struct plan *start(int kind, int other, const void *in, void *out, int64_t bytes,
                          struct clique *c) {
    hvd_tensor t = core_tensor(kind, HVD_UINT8, &bytes, in ? in : out, out, bytes);
    t.root = other;
    return clique_start(c, &t);
}

/* Two ranks that both send exchange so few bytes by an allgather, which is faster: each of them
 * knows that the other one sends, too. So a receive of two ranks is only noted, until Isend or
 * Wait. */
enum { FEW = 8 << 10 };
static const mpi_handle NOTED = 1; /* added to a clique's address: the request of its receive */
static const mpi_handle ENDED = 2; /* a request */

static int exchange(struct clique *c, const void *in) {
    const int64_t bytes = c->noted.bytes;
    void *out = c->noted.out;
    char *both = clique_scratch(c, 2 * bytes);
    hvd_tensor t = core_tensor(HVD_ALLGATHER, HVD_INT8, &bytes, in, both, 2 * bytes); /* own plan */
    c->noted.out = NULL;
    if (!both || clique_run(c, &t)) return 1;
    memcpy(out, both + !c->rank * bytes, (size_t)bytes);
    return 0;
}

API int MPIABI_Irecv(void *out, int count, mpi_handle type, int from, int tag, mpi_handle comm,
                     mpi_handle *request) {
    struct clique *c = clique_of(comm);
    (void)tag;
    const int64_t bytes = bytes_of(count, type);
    if (bytes < 0) return 1;
    if (c->size == 2 && bytes <= FEW) {
        c->noted = (struct noted){out, bytes, from};
        return *request = comm + NOTED, 0;
    }
    return !(*request = (mpi_handle)start(HVD_RECV, from, NULL, out, bytes, c));
}

API int MPIABI_Isend(const void *in, int count, mpi_handle type, int to, int tag, mpi_handle comm,
                     mpi_handle *request) {
    struct clique *c = clique_of(comm);
    (void)tag;
    const int64_t bytes = bytes_of(count, type);
    if (bytes < 0) return 1;
    if (c->noted.out && c->noted.bytes == bytes) return *request = ENDED, exchange(c, in);
    return !(*request = (mpi_handle)start(HVD_SEND, to, in, NULL, bytes, c));
}

API int MPIABI_Wait(mpi_handle *request, void *status) {
    (void)status;
    if (*request == ENDED) return 0;
    if (*request % 2 != NOTED) return clique_end((struct plan *)*request);
    struct clique *c = clique_of(*request - NOTED);
    void *out = c->noted.out;
    c->noted.out = NULL;
    return out && clique_end(start(HVD_RECV, c->noted.from, NULL, out, c->noted.bytes, c));
}
