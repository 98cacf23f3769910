/* Collectives: one file for each family of algorithms, one row of the table for each algorithm.
 *
 * An algorithm is a function of a comm and its arguments. It uses no MPI, no MXNet and no static
 * state. It starts no threads; large copies and sums are shared with the rank's helper threads
 * (shm/helpers.h). It returns when this rank's work is done. The result has the same bits
 * on every rank. Each file states its cost, for p ranks and S bytes: a = seconds per message, b =
 * seconds per byte sent, g = seconds per byte reduced.
 *
 *   batch     the tensors that one collective moves together
 *   chunk     the part of a batch that one rank reduces
 *   part      the rows that one rank contributes or gets: allgather, reducescatter, alltoall
 *   segment   the bytes of a chunk or a part that one message carries
 *   step      each rank sends once and receives once
 *   item      one exchange of a pipeline: a segment of a step
 *   slot      the window's memory of one rank for one round
 *   round     the data that goes through one slot of each rank of the window
 *   pass      all rounds of one collective
 *   block     the bytes that are added at a time; few, so that they stay in the L1 cache
 *   span      contiguous bytes of one tensor
 *   stripe    HVD_STRIPE bytes of a dealt tensor; one host has the stripe's optimizer states */
#ifndef HVDLITE_COLLECTIVES_COLL_H
#define HVDLITE_COLLECTIVES_COLL_H

#include "base/os.h"
#include "kernels/reduce.h"
#include "transport/comm.h"

/* One tensor of a batch. `in` and `out` may be the same. */
struct coll_tensor {
    const char *in;
    char *out;
    size_t bytes;
    const hvd_update *update; /* set for all tensors of a batch, or for none */
    size_t before;            /* index of this tensor's first value in update->weights */
};

/* All fields are equal on every rank, except the pointers and the parts of an alltoall. */
struct coll_args {
    hvd_kind kind;
    void *data;   /* allreduce, broadcast: input and output; other kinds: output */
    size_t bytes; /* bytes of `data`; reducescatter: of `in`; alltoall: total over all ranks */

    /* allreduce, broadcast: the tensors, `bytes` in total; some algorithms use them instead of
     * data */
    const struct coll_tensor *tensors;
    size_t ntensors;
    /* by local rank: the rank's part of the region with all tensors; NULL: no such region */
    char *const *memory;

    const struct reduce_kernels *reduce; /* for allreduce and reducescatter */
    double prescale;
    struct reduce_final final;
    bool adasum; /* allreduce: use the rule of adasum.c instead of `reduce` */

    int root; /* for broadcast */

    /* The input of an allgather, reducescatter or alltoall, and of an allreduce whose results and
     * elements differ in size. Other collectives: NULL, because their input is in `data`. */
    const void *in;
    const size_t *in_end;   /* reducescatter, alltoall: by rank, end of its part in `in` */
    const size_t *part_end; /* allgather, alltoall: by rank, end of its part in `data` */
    size_t longest;         /* bytes of the longest part of any rank */
    /* true: an alltoall in which `in` lists the addresses of the parts for the ranks, and `data`
     * lists where to store their parts; this rank's own part is not copied */
    bool listed;

    /* Working memory, kept between calls. outer: for algorithms that call other algorithms. */
    struct scratch *scratch, *outer;
};

typedef int coll_function(const struct comm *comm, const struct coll_args *args, hvd_error *err);

struct coll_algorithm {
    const char *name;
    hvd_kind kind;
    bool in_tensors; /* true: the algorithm uses args->tensors, not args->data */
    bool (*takes)(const struct comm *comm,
                  const struct coll_args *args); /* NULL: accepts every collective of `kind` */
    coll_function *run;
};

/* Returns the first row of the table that accepts the collective. There always is such a row. */
const struct coll_algorithm *coll_choose(const struct comm *comm, const struct coll_args *args);

/* Writes the algorithms of a float32 allreduce by size, for the log: "recursive doubling up to 16
 * KiB, circulant up to 64 KiB, then ring". Truncates the text to `size` bytes. */
void coll_choices_text(const struct comm *comm, char *text, size_t size);

/* Returns all rows, for tests and benchmarks. */
const struct coll_algorithm *coll_table(size_t *rows);
bool coll_takes(const struct coll_algorithm *row, const struct comm *comm,
                const struct coll_args *args);

/* Returns the maximum bytes of a batch in which the elements of each tensor are added in the same
 * order as if the tensor were alone in a batch. SIZE_MAX: no limit. */
size_t coll_alike(const struct comm *comm);

/* Chooses an algorithm and runs it. If there is only one rank, applies the scales. */
int coll_run(const struct comm *comm, const struct coll_args *args, hvd_error *err);

/* Collective, when a job on one host starts: chooses the size of the teams that sum in the window
 * (window.c), and the minimum bytes of an allreduce in teams. team: the wanted size; 1: no teams.
 * If it is 0, and more than 8 ranks have their own cores (own_core), the ranks measure allreduces
 * of 1 MiB with each possible size, then allreduces of 64 KiB with the fastest size; with fewer
 * ranks or cores there are no teams. If ranks pass different values, the largest `team` counts. */
int coll_choose_team(const struct comm *all, size_t team, bool own_core, hvd_error *err);

/* Runs after an allreduce: each rank of the host updates its chunk of the tensors' weights. Returns
 * when all ranks of the host are done. `host`: the ranks of this host. */
int coll_update(const struct comm *host, const struct coll_args *args, hvd_error *err);

/* Allreduces gradients and updates weights; each host has a part of the optimizer states.
 * args->data: working memory of args->bytes. The gradients themselves do not change. */
int coll_update_dealt(const struct comm *comm, const struct coll_args *args, hvd_error *err);

#endif
