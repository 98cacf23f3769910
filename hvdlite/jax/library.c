/* The part of MPI that XLA's CPU collectives call, implemented with hvdlite's core.
 *
 * Every jaxlib contains MPItrampoline. MPItrampoline loads this library, if MPITRAMPOLINE_LIB has
 * its path, and looks up all names of mpi_names.txt, which tools/jax_abi.py made from MPItrampoline
 * 5.3.1 (MIT license); _build.py defines the names that this file does not define. This library
 * starts no ranks: Python passes the functions of the loaded core (hvdlite_jax_begin). Several
 * threads of XLA call this library, but only one at a time for each clique (a communicator of XLA).
 * XLA passes counts as int. */
#include "library.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))

/* Limit on the plans of a clique: more than a program's tensors (ResNet-50 has 161 gradients), but
 * few enough to bound the memory of programs that use new shapes again and again. handle_of()
 * computes a plan's place as 8 bits of a hash. */
enum { PLANS = 256 };

struct clique {
    atomic_int group; /* the clique's group in the core; < 0: none yet */
    int rank, size;
    int color;                  /* color in the MPI_Comm_split that makes the clique */
    char name[CLIQUE_NAME + 1]; /* of all its tensors: "jax.0,1,2" */
    int steps;                  /* how many steps of the present all_to_all have been called */
    /* plans of the core, for collectives and messages that have run before; NULL: no plan */
    hvd_handle *plans[PLANS], *send;
    bool sends;    /* a message of a ppermute is under way, by the plan `send` */
    struct noted { /* the receive of a ppermute; bytes < 0: none */
        void *out;
        int64_t bytes;
        int from;
    } noted;
    /* all-to-all: addresses of the part from each rank of the clique, and of the part for it */
    void **parts_from;
    const void *parts_for[];
};

/* This state is global, because MPI's functions have no argument for it. calls.c has another copy
 * of the core's functions: a library that is compiled later must not rely on this struct. */
static struct jax {
    struct core core;
    /* the announced clique; NULL: none is announced, or XLA has made the clique's communicator */
    struct clique *_Atomic next;
    struct clique world; /* all ranks of the job; size 0: before init(). Its collectives fail. */
} jax = {.world = {.group = -1}};

/* Text of this thread's last failure, for Error_string. */
static _Thread_local char failure[1024];

__attribute__((format(printf, 1, 2))) static int refuse(const char *format, ...) {
    va_list values;
    va_start(values, format);
    vsnprintf(failure, sizeof failure, format, values);
    va_end(values);
    return 1;
}

/* ---- the names that MPItrampoline looks up ---- */
/* MPItrampoline's handles are integers as wide as a pointer. Here most handles are pointers. */

/* An MPI datatype that XLA uses. */
struct type {
    int dtype; /* the core's dtype */
    int bytes;
    int parts; /* 2 for complex types, which the core moves as pairs of floats; otherwise 1 */
};
#define BYTES(dtype, name, torch, mxnet, mpi, class, element, ...) BYTES_##dtype = sizeof(element),
enum { DTYPES(BYTES) };
#define TYPE(name, dtype, parts)                                                                   \
    API const struct type *const MPIABI_##name =                                                   \
        &(const struct type){HVD_##dtype, parts * BYTES_##dtype, parts};
TYPE(BYTE, UINT8, 1)
#define TYPE_OF(dtype, name, torch, mxnet, mpi, ...) TYPE(mpi, dtype, 1)
DTYPES(TYPE_OF)
TYPE(C_COMPLEX, FLOAT32, 2)
TYPE(C_DOUBLE_COMPLEX, FLOAT64, 2)

#define CONSTANT(name, value) API const intptr_t MPIABI_##name = value;
/* operations: the core's number plus one, because 0 stands for every unused constant */
CONSTANT(SUM, 1 + HVD_SUM)
CONSTANT(PROD, 1 + HVD_PRODUCT)
CONSTANT(MIN, 1 + HVD_MIN)
CONSTANT(MAX, 1 + HVD_MAX)
CONSTANT(UNDEFINED, -32766) /* as a color it must not equal a device's number */
API const int mpiwrapper_version_major = 2, mpiwrapper_version_minor = 11,
              mpiwrapper_version_patch = 0;
API const int mpiabi_version_major = 2, mpiabi_version_minor = 10, mpiabi_version_patch = 0;
API void mpiwrapper_export_fortran_constants_(void) {}

int hvdlite_unused_function(void) {
    return refuse("hvdlite.jax: this jaxlib calls a function of MPI that hvdlite does not "
                  "provide: use a jaxlib that docs/jax.md lists");
}

void hvdlite_jax_begin(core_finder *find, int rank, int size) {
    jax.core = core_found(find), jax.world.rank = rank, jax.world.size = size;
}

/* ---- communicators ---- */
API struct clique *const MPIABI_COMM_WORLD = &jax.world;

API int MPIABI_Init_thread(int *argc, char ***argv, int required, int *provided) {
    *provided = required;
    if (jax.world.size) return 0;
    return refuse("hvdlite.jax: call hvdlite.jax.init() before JAX's first computation");
}
API int MPIABI_Finalize(void) { return 0; }                       /* hvd.shutdown() ends the job */
API int MPIABI_Is_thread_main(int *flag) { return *flag = 1, 0; } /* any thread may use MPI */
API int MPIABI_Comm_rank(struct clique *c, int *rank) { return *rank = c->rank, 0; }
API int MPIABI_Comm_size(struct clique *c, int *size) { return *size = c->size, 0; }

struct clique *hvdlite_jax_announce(const char *name, int size, int key, int color) {
    struct clique *c = calloc(1, sizeof *c + (size_t)size * 2 * sizeof(void *));
    if (!c) return NULL;
    c->parts_from = (void **)c->parts_for + size;
    c->rank = key, c->size = size, c->color = color, c->noted.bytes = -1;
    c->group = -1;
    snprintf(c->name, sizeof c->name, "%s", name);
    return jax.next = c;
}

bool hvdlite_jax_withdraw(struct clique *c) { return atomic_exchange(&jax.next, NULL) != c; }
void hvdlite_jax_open(struct clique *c, int group) { c->group = group; }

API int MPIABI_Comm_split(struct clique *all, int color, int key, struct clique **out) {
    struct clique *c = jax.next;
    bool asks = c && c->color == color && c->rank == key;
    if (asks && atomic_compare_exchange_strong(&jax.next, &c, NULL)) return *out = c, 0;
    snprintf(all->name, sizeof all->name, "first device %d, this process is number %d", color, key);
    return *out = all, 0; /* collectives on `all` fail */
}
API int MPIABI_Comm_free(struct clique **c) { return *c = NULL, 0; } /* cliques end with the job */
API int MPIABI_Error_string(int code, char *text, int *length) {
    *length = snprintf(text, sizeof failure, "%s", code ? failure : "no error");
    return 0;
}

/* ---- running ---- */
static const double NO_LIMIT = 1e9; /* seconds; if a rank dies, the core ends each wait */

static int fail(hvd_error *err) {
    jax.core.hvd_keep_failure(err);
    return refuse("%s", err->text);
}

/* Returns the handle of a plan for this tensor, which replaces any other plan at the same place.
 * NULL: failure. */
static hvd_handle *handle_of(struct clique *c, hvd_tensor t) {
    /* The core compares calls with the same name, so ranks that disagree get an error at once. */
    t.name = c->name, t.group = c->group, t.waited = 1;
    const int64_t key[] = {t.kind, t.dtype, t.op, t.root, *t.dims, t.ndim > 1 ? t.dims[1] : 0};
    uint64_t hash = 0;
    /* The factor, 2^64 / the golden ratio, spreads sizes, most of which are multiples of PLANS. */
    for (size_t i = 0; i < sizeof key / sizeof *key; i++)
        hash = (hash + (uint64_t)key[i]) * 0x9E3779B97F4A7C15u;
    hvd_handle **kept = t.kind == HVD_SEND ? &c->send : &c->plans[hash >> 56];
    if (*kept && jax.core.hvd_plan_fits(*kept, &t)) return *kept;
    hvd_error err;
    hvd_handle *handle = jax.core.hvd_plan(&t, &err);
    if (!handle) return fail(&err), NULL;
    if (*kept) jax.core.hvd_drop(*kept);
    return *kept = handle;
}

/* Waits until the collective ends. Returns 0, or 1 after a failure. */
static int end(hvd_handle *started) {
    hvd_error err;
    while (!jax.core.hvd_finish(started, NO_LIMIT, &err)) continue;
    return err.code && fail(&err);
}

/* Runs a collective, or receives a message from `root`, a rank of the clique. */
static int run(struct clique *c, const hvd_tensor *t) {
    hvd_handle *handle = handle_of(c, *t);
    if (!handle) return 1;
    return !jax.core.hvd_run(handle, t->in, t->out, NO_LIMIT) && end(handle);
}

/* ---- collectives ---- */
/* Returns the bytes of `count` elements that a clique is to move; < 0: failure. */
static int64_t bytes_of(const struct clique *c, int count, const struct type *type) {
    if (c->group < 0 && c->size != 1)
        return -refuse("hvdlite.jax: a program has a collective among processes that were "
                       "not announced (%s): the program was compiled or loaded before "
                       "hvd.init(), or in a way that this version of hvdlite does not know",
                       c->name);
    if (!type)
        return -refuse("hvdlite.jax: hvdlite lacks the dtype of this array: convert the array");
    if (count < 0) return -refuse("hvdlite.jax: this array has 2^31 elements or more: split it");
    return (int64_t)count * type->bytes;
}

/* In allgathers and alltoalls, ranks may have different numbers of rows (the first dimension). */
static hvd_tensor tensor_of(int kind, int dtype, int ndim, const int64_t dims[], const void *in,
                            void *out, int64_t out_rows) {
    hvd_tensor t = {.kind = kind, .dtype = dtype, .prescale = 1, .postscale = 1, .ndim = ndim};
    t.dims = dims, t.in = in, t.out = out, t.out_rows = out_rows;
    return t;
}

/* Reduces over ranks; `out` has `count` elements. */
static int reduce(int kind, const void *in, void *out, int count, const struct type *type,
                  intptr_t op, struct clique *c) {
    const int64_t bytes = bytes_of(c, count, type);
    if (bytes <= 0) return bytes < 0;
    if (!op || (type->parts > 1 && op != MPIABI_SUM))
        return refuse("hvdlite.jax: XLA reduces by an operation that hvdlite does not know "
                      "for this type: complex numbers can be summed only");
    if (!in) in = out; /* MPI_IN_PLACE */
    if (c->size == 1) return memmove(out, in, (size_t)bytes), 0;
    const int64_t own = (int64_t)count * type->parts;
    const int64_t n = kind == HVD_REDUCESCATTER ? own * c->size : own;
    hvd_tensor t = tensor_of(kind, type->dtype, 1, &n, in, out, own);
    t.op = (int)op - 1;
    return run(c, &t);
}

API int MPIABI_Allreduce(const void *in, void *out, int count, const struct type *type, intptr_t op,
                         struct clique *c) {
    return reduce(HVD_ALLREDUCE, in, out, count, type, op, c);
}

API int MPIABI_Reduce_scatter(const void *in, void *out, const int counts[],
                              const struct type *type, intptr_t op, struct clique *c) {
    for (int i = 1; i < c->size; i++)
        if (counts[i] != counts[0])
            return refuse("hvdlite.jax: can't reduce-scatter into unequal parts");
    return reduce(HVD_REDUCESCATTER, in, out, counts[0], type, op, c);
}

API int MPIABI_Allgather(const void *in, int count, const struct type *type, void *out,
                         int out_count, const struct type *out_type, struct clique *c) {
    const int64_t bytes = bytes_of(c, count, type);
    if (bytes <= 0) return bytes < 0;
    if (c->size == 1) return memmove(out, in, (size_t)bytes), 0;
    hvd_tensor t = tensor_of(HVD_ALLGATHER, HVD_UINT8, 2, (int64_t[]){1, bytes}, in, out, c->size);
    return run(c, &t);
}

/* Exchanges parts of equal size with all other ranks.
 *
 * dtype: a one-byte type; ppermute and all_to_all use different types, so that the core refuses a
 * ppermute on one rank and an all_to_all on another. */
static int exchange(int dtype, int64_t part, struct clique *c) {
    const int64_t n = c->size;
    hvd_tensor t =
        tensor_of(HVD_ALLTOALL, dtype, 2, (int64_t[]){n, part}, c->parts_for, c->parts_from, n);
    t.listed = 1;
    return run(c, &t);
}

/* XLA's all_to_all calls Sendrecv with the next and the previous rank, then with the ranks at
 * distance 2 in both directions, and so on. The earlier calls only note where the parts are. The
 * last call does the whole exchange as one collective. XLA itself copies this rank's own part. */
API int MPIABI_Sendrecv(const void *in, int count, const struct type *type, int to, int tag,
                        void *out, int out_count, const struct type *out_type, int from,
                        int out_tag, struct clique *c, void *status) {
    const int64_t part = bytes_of(c, count, type);
    if (part <= 0) return part < 0;
    const int n = c->size, step = (to - c->rank + n) % n;
    if (step == 1) c->steps = 0;
    if (step != ++c->steps || (from + step) % n != c->rank || count != out_count)
        return refuse("hvdlite.jax: this jaxlib does not send an all-to-all in the order "
                      "that hvdlite knows: docs/jax.md lists the versions tested");
    c->parts_for[to] = in;
    c->parts_from[from] = out;
    return step == n - 1 && exchange(HVD_UINT8, part, c);
}

/* ---- between two ranks ---- */
/* XLA's ppermute calls Irecv if this rank receives, then Isend if this rank sends, then Wait for
 * each request. Irecv only notes the receive; Wait carries the receive out. If both ranks of a
 * clique of two send at most HVD_FAST_BYTES, Isend exchanges the data by one alltoall instead of
 * two messages, because the core's fast path runs such an alltoall. Not measured: whether the
 * alltoall is faster. */
/* Call this before you return an error: it waits for the send, because after an error XLA frees the
 * send's memory without waiting. */
static void settle(struct clique *c) {
    while (c->sends && !jax.core.hvd_finish(c->send, NO_LIMIT, NULL)) continue;
    c->sends = false;
    c->noted.bytes = -1;
}

/* A request is its clique's address plus one of these numbers. */
enum { RECEIVE, SEND };

API int MPIABI_Irecv(void *out, int count, const struct type *type, int from, int tag,
                     struct clique *c, char **request) {
    c->noted = (struct noted){out, bytes_of(c, count, type), from};
    *request = (char *)c + RECEIVE;
    return c->noted.bytes < 0;
}

API int MPIABI_Isend(const void *in, int count, const struct type *type, int to, int tag,
                     struct clique *c, char **request) {
    const int64_t bytes = bytes_of(c, count, type);
    if (bytes < 0) return 1;
    *request = (char *)c + SEND;
    if (c->size == 2 && bytes <= HVD_FAST_BYTES && bytes == c->noted.bytes) {
        c->noted.bytes = -1;
        c->parts_for[to] = in, c->parts_from[to] = c->noted.out;
        return exchange(HVD_INT8, bytes, c);
    }
    if (c->sends)
        return settle(c), refuse("hvdlite.jax: XLA sends a second message before the first has "
                                 "arrived: use a jaxlib that docs/jax.md lists");
    hvd_tensor t = tensor_of(HVD_SEND, HVD_UINT8, 1, &bytes, in, NULL, bytes);
    t.root = to;
    c->sends = handle_of(c, t);
    if (!c->sends) return c->noted.bytes = -1, 1;
    return jax.core.hvd_run(c->send, in, NULL, -1), 0;
}

API int MPIABI_Wait(char **request, void *status) {
    const uintptr_t kind = (uintptr_t)*request % 2;
    struct clique *c = (struct clique *)(*request - kind);
    if (kind == SEND) {
        const bool sends = c->sends; /* false: Isend has moved the data by an alltoall */
        c->sends = false;
        return sends && end(c->send);
    }
    const struct noted noted = c->noted;
    c->noted.bytes = -1;
    if (noted.bytes < 0) return 0; /* the alltoall in Isend has received the data */
    hvd_tensor t =
        tensor_of(HVD_RECV, HVD_UINT8, 1, &noted.bytes, noted.out, noted.out, noted.bytes);
    t.root = noted.from;
    if (!run(c, &t)) return 0;
    settle(c);
    return 1;
}
