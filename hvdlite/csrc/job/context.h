/* The data of the process: its only job, behind a lock, and data that outlives jobs.
 *
 * Any thread may call these functions. */
#ifndef HVDLITE_JOB_CONTEXT_H
#define HVDLITE_JOB_CONTEXT_H

#include "job/job.h"

/* Between context_enter and context_leave, no other thread closes the job or its groups. In a
 * forked child context_enter fails. Only hvd_where works in a child, because a data loader uses
 * hvd_where to find its part of the data. */
int context_enter(hvd_error *err);
void context_leave(void);

/* Calls context_enter and finds the group. name: the tensor's name, for the error. */
int context_enter_group(int id, const char *name, struct group **out, hvd_error *err);

/* ---- call these functions between context_enter and context_leave ---- */
struct job *context_job(void);
struct group *context_world(void); /* the group of all ranks */
/* Returns 1 for the first job that this process has opened, 2 for the second, ... */
uint64_t context_job_number(void);
/* Returns HVD_OK, or the first cause of the failure that ended the job. */
int context_why_failed(hvd_error *err);

/* ---- these functions wait until each thread that has called context_enter leaves ---- */
/* Keeps the job's memory until context_release, even if another thread closes the job. */
int context_hold(struct job **out, hvd_error *err);
void context_release(struct job *held);
/* Fails if the job has been closed since context_hold. */
int context_add_group(struct job *held, struct group *g, int *id, hvd_error *err);
/* removes the group from the job; NULL: no such group */
struct group *context_take_group(int id);

/* ---- call these functions at any time ---- */
/* The last errors, kept until the process ends, because frameworks raise errors even after the end
 * of the job. FAILURES_KEPT: chosen; if a rank dies, MXNet may raise the failure of a tensor after
 * the failures of all other tensors. */
enum { FAILURES_KEPT = 1024 };
struct failures {
    size_t count; /* number of failures so far */
    hvd_error last[FAILURES_KEPT];
};
struct failures *context_lock_failures(void);
void context_unlock_failures(void);
/* A signal handler may call this function. */
struct stacks *context_stacks(void);
/* The exit code of a forked child, kept here because exit functions get no argument. */
int *context_exit_code(void);

#endif
