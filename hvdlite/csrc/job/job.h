/* The job on this rank: its groups, each with a transport and an engine; and the context: this
 * process's only job, with the lock of the only pointer to it.
 *
 * Group 0 is the whole job. Groups may overlap: their engines do not wait for each other. During a
 * call of job_* no thread may add or remove groups, which the context's lock ensures; functions
 * marked "no lock" need no such lock. */
#ifndef HVDLITE_JOB_JOB_H
#define HVDLITE_JOB_JOB_H

#include "engine/engine.h"
#include "engine/tensors.h"
#include "hvd.h"
#include "transport/transport.h"

#include <stdatomic.h>
#include <sys/types.h>

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

/* ---- the context: any thread ---- */

/* Between enter and leave the job and its groups stay. In a forked child all calls fail except
 * hvd_where, which a data loader needs to find its part of the data. */
int context_enter(hvd_error *err);
void context_leave(void);

/* Enters and finds the group. name: the tensor's, for the error text. */
int context_enter_group(int id, const char *name, struct group **out, hvd_error *err);

/* ---- between enter and leave ---- */
struct job *context_job(void);
struct group *context_world(void); /* all ranks of the job */
/* HVD_OK, or the first cause of the failure that ended the job. */
int context_why_failed(hvd_error *err);

/* ---- outside enter and leave: these wait until all callers have left ---- */
/* Opens the job; collective. */
int context_open(struct reach *reach, hvd_error *err);
/* Keeps the job's memory until context_release, even if another thread closes the job. */
int context_hold(struct job **out, hvd_error *err);
void context_release(struct job *held);
/* Fails if the held job has been closed. */
int context_add_group(struct job *held, struct group *g, int *id, hvd_error *err);
struct group *context_take_group(int id); /* NULL: no such group */

/* ---- handle: one tensor under way: handle.c ----
 *
 * Any number of threads may ask for its result or wait for it. The caller and, from handle_lend to
 * the completion, the engine hold a handle. The last of them frees it: a caller may drop a handle
 * whose tensor is still under way. */

struct hvd_handle {
    struct tensor tensor; /* hvd_drop frees its splits, why and made */
    int group;            /* of ranks, whose engine completes it */
    pid_t process;        /* whose engine completes it: a child forked from that has none */
    atomic_int holders;
    atomic_bool done;     /* then `error` stays as it is */
    atomic_bool given_up; /* nobody waits any more */
    hvd_error error;
    struct mutex mutex;         /* for waits for `done` */
    void (*watcher)(void *arg); /* called when the tensor is done; NULL: none */
    void *watcher_arg;
};

struct hvd_handle *handle_new(hvd_error *err);
/* Call it before the submission of the filled-in tensor; drop the handle if the submission
 * fails. */
void handle_lend(struct hvd_handle *h);

/* The same for a tensor that was submitted before and is done. */
void handle_renew(struct hvd_handle *h, const void *in, void *out);
void handle_refuse(struct hvd_handle *h, const hvd_error *err); /* the engine did not take it */

/* As hvd_finish, but does not step the engine. */
bool handle_finish(struct hvd_handle *h, double seconds, hvd_error *err);

#endif
