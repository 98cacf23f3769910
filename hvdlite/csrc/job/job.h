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

/* What the ranks of a job or of a group need to reach each other. */
struct reach {
    hvd_by_mpi mpi;      /* zeroed: the ranks use sockets */
    hvd_sockets sockets; /* the sockets of a job over sockets */
    bool taken;          /* true: the transport owns the sockets */
    int size, number;    /* size and number of a group in a job over sockets */
};

struct group {
    struct transport *transport;
    struct engine *engine;
    int *job_ranks; /* by rank of the group: the rank's number in the job; NULL: the same */
};

struct job {
    struct group **groups; /* by id; NULL: the group is closed. Ids are not reused */
    int ngroups;
    atomic_bool left;        /* this rank has left all groups */
    struct transport *world; /* the transport of group 0 */
    struct engine_config config;
    struct patience patience;
    struct crowd crowd; /* one for all groups */
    struct pace pace;
    struct cost cost;         /* cost of messages between hosts, measured at the start */
    struct timeline timeline; /* one timeline for all groups */
    struct stats stats;       /* used where there is no flight recorder */
    struct helpers *helpers;  /* NULL: none */
    struct flight *flight;    /* NULL: switched off, or no memory for it */
};

/* Collective. Reads the environment into j->config, except give_up, which the caller has set.
 * job_close also takes a zeroed job. */
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
/* removes a group, which the caller then owns; NULL: no such group */
struct group *job_take(struct job *j, int id);

/* Stops the engine and frees the group; NULL does nothing. No lock, because the group is no
 * longer in the job. */
void group_close(struct group *g);

#endif
