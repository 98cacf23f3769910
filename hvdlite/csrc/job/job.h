/* The job on this rank: its groups of ranks, each with a transport and an engine of its own.
 *
 * Group 0 is all of the job; others may overlap, for their engines wait for nobody else's.
 * Whoever calls sees to it that no group is added or taken away meanwhile, except where it says
 * that a call needs no such care. */
#ifndef HVDLITE_JOB_JOB_H
#define HVDLITE_JOB_JOB_H

#include "engine/engine.h"

struct group {
    struct transport *transport;
    struct engine *engine;
    int *job_ranks; /* [rank of the group]: its rank in the job; NULL: the same */
};

struct job {
    struct group **groups; /* [id]; NULL: closed, ids are never used twice */
    int ngroups;
    struct engine_config config;
    struct wait_policy wait;
    double timeout;           /* seconds without progress until a collective gives up; 0: never */
    bool window;              /* ranks of one host may share memory */
    struct timeline timeline; /* of all groups, as the stats */
    struct stats stats;
};

/* Collective over the communicator whose handle lies at `mpi_comm`. Reads the environment. A zeroed
 * job may be closed. */
int job_open(struct job *j, const void *mpi_comm, hvd_error *err);
void job_close(struct job *j);

/* The file of a rank: `path` with {rank} replaced by its number; a path without that is rank 0's, and
 * the others write nothing. */
int job_start_timeline(struct job *j, const char *path, bool mark_cycles, hvd_error *err);

/* NULL: there is no such group any more. */
struct group *job_group(const struct job *j, int id);

/* Makes a group of the communicator's ranks, whose ranks in the job are `job_ranks`; collective over it,
 * no care needed. Then job_add takes it over and gives it its id. */
int job_make_group(const struct job *j, const void *mpi_comm, const int *job_ranks,
                   struct group **out, hvd_error *err);
int job_add(struct job *j, struct group *g, int *id, hvd_error *err);
struct group *job_take(struct job *j, int id); /* no longer the job's; NULL: it was not */

/* Ends the engine and frees the group; NULL is nothing. No care needed for a group that was taken. */
void group_close(struct group *g);

#endif
