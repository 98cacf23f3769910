/* The job on this rank: its groups, each with a transport and an engine.
 *
 * Group 0 is the whole job. Groups may overlap: their engines do not wait for each other. During a
 * call of job_* no thread may add or remove groups, which the lock of context.h ensures; functions
 * marked "no lock" need no such lock. */
#ifndef HVDLITE_JOB_JOB_H
#define HVDLITE_JOB_JOB_H

#include "engine/engine.h"
#include "hvd.h"
#include "transport/transport.h"

#include <stdatomic.h>

/* How the ranks reach each other. */
struct reach {
    hvd_by_mpi mpi;      /* zeroed: by sockets */
    hvd_sockets sockets; /* of a job */
    bool taken;          /* the sockets have an owner */
    int size, number;    /* of a group among ranks of a job by sockets */
};

struct group {
    struct transport *transport;
    struct engine *engine;
    int *job_ranks; /* [rank of the group]: its rank in the job; NULL: the same */
};

struct job {
    struct group **groups; /* [id]; NULL: closed. Ids are not reused */
    int ngroups;
    atomic_bool left;        /* this rank has left all groups */
    struct transport *world; /* of group 0 */
    struct engine_config config;
    struct patience patience;
    struct pace pace;
    struct cost cost;         /* between hosts, measured at the start */
    struct timeline timeline; /* of all groups, like the stats */
    struct stats stats;       /* used where there is no flight recorder */
    struct helpers *helpers;  /* NULL: none */
    struct flight *flight;    /* NULL: switched off, or no memory for it */
};

/* Collective. Reads the environment; keeps config.give_up. job_close also takes a zeroed job. */
int job_open(struct job *j, struct reach *reach, hvd_error *err);
void job_close(struct job *j);

/* Starts this rank's file: {rank} in `path` becomes the rank; without {rank} only rank 0 writes. */
int job_start_timeline(struct job *j, const char *path, bool mark_cycles, hvd_error *err);

/* NULL: no such group, or it is closed. */
struct group *job_group(const struct job *j, int id);

/* Makes a group; collective; no lock. `job_ranks`: its ranks in the job. job_add then adds it to
 * the job and returns its id. */
int job_make_group(const struct job *j, struct reach *reach, const int *job_ranks,
                   struct group **out, hvd_error *err);
int job_add(struct job *j, struct group *g, int *id, hvd_error *err);
struct group *job_take(struct job *j, int id); /* the caller owns it; NULL: no such group */

/* Stops the engine and frees the group; NULL does nothing. No lock, for a taken group. */
void group_close(struct group *g);

#endif
