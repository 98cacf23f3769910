/* The job on this rank: its groups. Each group has a transport and an engine.
 *
 * Group 0 has all ranks. Groups may have ranks in common; their engines do not wait for each other.
 * During a call of job_* no other thread may add or remove groups: callers hold the lock of
 * context.h, except where a comment says otherwise. */
#ifndef HVDLITE_JOB_JOB_H
#define HVDLITE_JOB_JOB_H

#include "engine/engine.h"
#include "hvd.h"
#include "transport/transport.h"

#include <stdatomic.h>

struct group {
    struct transport *transport;
    struct engine *engine;
    int *job_ranks; /* by rank of the group: the rank's number in the job; NULL: the same number */
};

struct job {
    struct group **groups; /* by id; NULL: the group is closed. Ids are not reused */
    int ngroups;
    atomic_bool left;        /* true: this rank has left all groups */
    struct transport *world; /* the transport of group 0 */
    struct engine_config config;
    struct patience patience;
    struct crowd crowd; /* shared by all groups */
    struct pace pace;
    struct cost cost;         /* cost of messages between hosts, measured at the start */
    struct timeline timeline; /* shared by all groups */
    struct stats stats;       /* used if there is no flight recorder */
    struct helpers *helpers;  /* NULL: none */
    struct flight *flight;    /* NULL: switched off, or memory was short */
};

/* Collective. Reads the environment into j->config. The caller sets j->config.give_up before.
 * job_close accepts a zeroed job. */
int job_open(struct job *j, const hvd_transport *transport, hvd_error *err);
void job_close(struct job *j);

/* Starts this rank's timeline file. {rank} in `path` becomes the rank's number; without {rank} only
 * rank 0 writes a file. */
int job_start_timeline(struct job *j, const char *path, bool mark_cycles, hvd_error *err);

/* Returns NULL if there is no such group, or if it is closed. */
struct group *job_group(const struct job *j, int id);

/* job_make_group makes a group. All ranks of the group call it, without a lock. `job_ranks`: the
 * ranks' numbers in the job. job_add then adds the group to the job and returns the group's id. */
int job_make_group(const struct job *j, const hvd_transport *transport, const int *job_ranks,
                   struct group **out, hvd_error *err);
int job_add(struct job *j, struct group *g, int *id, hvd_error *err);
/* removes a group and returns it; the caller owns it. NULL: no such group */
struct group *job_take(struct job *j, int id);

/* Stops the group's engine and frees the group; NULL is allowed. No lock is needed, because the
 * group has been removed from the job. */
void group_close(struct group *g);

#endif
