/* The data of the process.
 *
 * Its only job is behind a lock; the other data outlives jobs. Any thread. */
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

/* ---- call these between enter and leave ---- */
struct job *context_job(void);
struct group *context_world(void); /* the group of all ranks */
/* Returns 1 for the first job that this process has opened, 2 for the second, ... */
uint64_t context_job_number(void);
/* Returns HVD_OK, or the first cause of the failure that ended the job. */
int context_why_failed(hvd_error *err);

/* ---- call these outside of enter and leave: they wait until all callers have left ---- */
/* Opens the job. Collective. */
int context_open(struct bootstrap *bootstrap, hvd_error *err);
/* Keeps the job's memory until context_release, even if another thread closes the job. */
int context_hold(struct job **out, hvd_error *err);
void context_release(struct job *held);
/* Fails if the held job has been closed meanwhile. */
int context_add_group(struct job *held, struct group *g, int *id, hvd_error *err);
/* removes the group from the job; NULL: no such group */
struct group *context_take_group(int id);

/* ---- the process's other data: any time, also inside of enter and leave ---- */
/* The last errors, kept until the process ends: frameworks raise errors also after the job's end.
 * FAILURES_KEPT is more than the failures of a program between two looks at them. */
enum { FAILURES_KEPT = 64 };
struct failures {
    uint64_t count; /* number of the last failure */
    hvd_error last[FAILURES_KEPT];
};
struct failures *context_lock_failures(void);
void context_unlock_failures(void);
/* A signal handler may call it. */
struct stacks *context_stacks(void);
/* The exit code of a forked child, kept here because exit functions get no argument. */
int *context_exit_code(void);

#endif
