/* Context: this process's one job, and the lock of the one pointer to it.
 *
 * Any thread. Between an enter that succeeds and its leave the job stands and no group is added or taken
 * away. The calls of a child that was forked fail. */
#ifndef HVDLITE_JOB_CONTEXT_H
#define HVDLITE_JOB_CONTEXT_H

#include "job/job.h"

int context_enter(hvd_error *err);
void context_leave(void);

/* Enters, too, and finds the group of ranks; `name` is that of the tensor that it is for. */
int context_enter_group(int id, const char *name, struct group **out, hvd_error *err);

/* ---- between enter and leave ---- */
struct job *context_job(void);
struct group *context_world(void); /* all ranks of the job */
/* HVD_OK, or the first cause of what has ended the job. */
int context_why_failed(hvd_error *err);

/* ---- outside: these wait until all callers have left ---- */
/* Opens the job; collective over the communicator whose handle lies at `mpi_comm`. */
int context_open(const void *mpi_comm, hvd_error *err);
void context_close(void);
/* The job's memory stays until context_release, though another thread may close the job before. */
int context_hold(struct job **out, hvd_error *err);
void context_release(struct job *held);
/* Fails, too, when the job has been closed since it is held. */
int context_add_group(struct job *held, struct group *g, int *id, hvd_error *err);
struct group *context_take_group(int id); /* NULL: there is no such group */

#endif
