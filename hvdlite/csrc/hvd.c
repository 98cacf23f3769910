#define _POSIX_C_SOURCE 200809L /* rwlocks */
#include "hvd.h"

#include "engine/job.h"
#include "shm/shmem.h"
#include "transport/transport_mpi.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct context {
    struct job job;
    bool forked; /* a child has the memory, but neither the threads nor MPI */
};

/* The one pointer to the process's context; whoever uses it holds the lock for reading. */
static struct context *current;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static int enter(hvd_error *err) {
    pthread_rwlock_rdlock(&lock);
    if (current && !current->forked) return HVD_OK;
    bool forked = current != NULL;
    pthread_rwlock_unlock(&lock);
    return error_set(
        err, HVD_NOT_INITIALIZED,
        forked ? "this process was forked after hvdlite.init(): a child can't take part in the job"
               : "hvdlite has not been initialized; use hvdlite.init()");
}

/* Cheaper than to ask for the process's id in every call, which is a system call. */
static void in_child(void) {
    if (current) current->forked = true;
}

static void leave(void) { pthread_rwlock_unlock(&lock); }

static struct group *world(void) { return current->job.groups[0]; }

/* Enters, too, and finds the group; `name` is that of the tensor that it is for. */
static int enter_group(int id, const char *name, struct group **out, hvd_error *err) {
    HVD_TRY(enter(err));
    *out = job_group(&current->job, id);
    if (*out) return HVD_OK;
    leave();
    return error_set(err, HVD_INVALID, "tensor '%s': there is no process set of number %d", name,
                     id);
}

/* ---- start ---- */

int hvd_init(const void *mpi_comm, hvd_error *err) {
    pthread_rwlock_wrlock(&lock);
    int code = current ? error_set(err, HVD_INVALID, "hvdlite is initialized already") : HVD_OK;
    struct context *c = code ? NULL : calloc(1, sizeof *c);
    if (!code && !c) code = error_set(err, HVD_NO_MEMORY, "no memory for the context");
    if (!code) code = job_open(&c->job, mpi_comm, err);
    if (!code) code = fork_watch(in_child, err); /* again if it is not the first: no harm in that */
    if (!code) {
        current = c;
    } else if (c) {
        job_close(&c->job);
        free(c);
    }
    pthread_rwlock_unlock(&lock);
    return code;
}

int hvd_is_initialized(void) {
    if (enter(NULL)) return 0;
    leave();
    return 1;
}

int hvd_where(hvd_topology *out, hvd_error *err) {
    HVD_TRY(enter(err));
    struct topology at = world()->transport->at;
    leave();
    *out = (hvd_topology){at.rank,       at.size,       at.local_rank,
                          at.local_size, at.cross_rank, at.cross_size};
    return HVD_OK;
}

/* Once entered: HVD_OK, or the first cause of what has ended the job. */
static int why_failed(hvd_error *err) {
    for (int id = 0; id < current->job.ngroups; id++) {
        struct group *g = job_group(&current->job, id);
        if (g && engine_failed(g->engine, err)) return err->code;
    }
    return HVD_OK;
}

int hvd_check(hvd_error *err) {
    HVD_TRY(enter(err));
    int code = why_failed(err);
    leave();
    return code;
}

const char *hvd_algorithm(void) {
    if (enter(NULL)) return NULL;
    const char *name = engine_algorithm(world()->engine);
    leave();
    return name;
}

/* ---- work ---- */

static int translate(const hvd_tensor *from, struct tensor *to, hvd_error *err) {
    struct request *r = &to->request;
    if (strlen(from->name) >= sizeof r->name)
        return error_set(err, HVD_INVALID, "the tensor name '%.60s...' is longer than %d bytes",
                         from->name, HVD_MAX_NAME - 1);
    if (from->ndim < 0 || from->ndim > HVD_MAX_DIMS)
        return error_set(err, HVD_UNSUPPORTED, "tensor '%s' has %d dimensions: expected 0 to %d",
                         from->name, from->ndim, HVD_MAX_DIMS);
    memset(to, 0, offsetof(struct tensor, request.dims)); /* the rest is room, mostly not used */
    strcpy(r->name, from->name);
    r->kind = from->kind;
    r->dtype = from->dtype;
    r->op = from->op;
    r->root = from->root;
    r->priority = from->priority;
    r->prescale = from->prescale;
    r->postscale = from->postscale;
    r->codec = (struct codec){from->codec, from->parameter};
    r->failed = from->failed != 0;
    r->ndim = from->ndim;
    if (from->ndim) memcpy(r->dims, from->dims, (size_t)from->ndim * sizeof *r->dims);
    to->in = from->in;
    to->out = from->out;
    to->out_rows = from->out_rows;
    to->residual = from->residual;
    return HVD_OK;
}

/* All but the splits. */
static int write_down(const hvd_tensor *from, struct tensor *to, hvd_error *err) {
    struct group *g;
    HVD_TRY(translate(from, to, err));
    HVD_TRY(enter_group(from->group, from->name, &g, err));
    int code = why_failed(err);
    if (!code) code = request_check(&to->request, g->transport->at.size, err);
    leave();
    return code;
}

int hvd_prepare(const hvd_tensor *from, struct tensor *to, hvd_error *err) {
    HVD_TRY(write_down(from, to, err));
    if (!from->nsplits) return HVD_OK;
    size_t bytes = from->nsplits * sizeof *from->splits;
    int64_t *splits = malloc(bytes);
    if (!splits) return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", from->name);
    to->splits = memcpy(splits, from->splits, bytes);
    to->nsplits = from->nsplits;
    return HVD_OK;
}

int hvd_validate(const hvd_tensor *tensor, hvd_error *err) {
    struct tensor ignored;
    return write_down(tensor, &ignored, err);
}

int hvd_submit(int group, struct tensor *tensor, hvd_error *err) {
    struct group *g;
    HVD_TRY(enter_group(group, tensor->request.name, &g, err));
    int code = engine_submit(g->engine, tensor, err);
    leave();
    return code;
}

/* The group may be gone by now, and with it all that was held back. */
void hvd_hold(int group, bool held) {
    struct group *g;
    if (enter_group(group, "", &g, NULL)) return;
    engine_hold(g->engine, held);
    leave();
}

int hvd_get_stats(hvd_stats *out, hvd_error *err) {
    HVD_TRY(enter(err));
    struct stats *stats = &current->job.stats;
    *out = (hvd_stats){stats->bytes_sent_mpi, stats->bytes_sent_window, stats->tensors,
                       stats->batches};
    leave();
    return HVD_OK;
}

/* ---- regions ---- */

struct hvd_region {
    struct region region; /* first: the engine knows no more */
    int fd;               /* of this rank's part; others open it through /proc */
};

/* The topology of a job that can have regions: all ranks in one window. */
static int where_on_window(hvd_topology *at, hvd_error *err) {
    HVD_TRY(hvd_where(at, err));
    HVD_TRY(enter(err));
    bool window = world()->transport->window && at->local_size == at->size;
    leave();
    return window ? HVD_OK
                  : error_set(err, HVD_UNSUPPORTED, "the ranks of this job do not share memory");
}

hvd_region *hvd_region_create(size_t bytes, hvd_error *err) {
    hvd_topology at;
    if (where_on_window(&at, err)) return NULL;
    hvd_region *r = calloc(1, sizeof *r);
    if (!r) {
        error_set(err, HVD_NO_MEMORY, "no memory for a region");
        return NULL;
    }
    void *memory;
    size_t stride = bytes + REGION_GAP;
    r->region = (struct region){.stride = stride, .n = at.local_size, .self = at.local_rank};
    if (shmem_reserve(&memory, stride, at.local_size, at.local_rank, &r->fd, err)) {
        free(r);
        return NULL;
    }
    r->region.memory = memory;
    return r;
}

void *hvd_region_memory(hvd_region *r) { return region_part(&r->region, r->region.self); }

_Static_assert(HVD_REGION_ADDRESS == SHMEM_NAME, "a region's address is its memory's name");

/* What is used of a part, with the rest of the last large page: mapped whole or not at all. */
static size_t bytes_used(const hvd_region *r, int local_rank, uint64_t used) {
    size_t whole = shmem_whole_pages(region_part(&r->region, local_rank), (size_t)used);
    return whole < r->region.stride ? whole : r->region.stride;
}

void hvd_region_address(hvd_region *r, uint64_t used, char address[HVD_REGION_ADDRESS]) {
    shmem_collapse(hvd_region_memory(r), bytes_used(r, r->region.self, used));
    shmem_address(r->fd, address);
}

int hvd_region_join(hvd_region *r, int id, const char *const *addresses, const uint64_t *used,
                    hvd_error *err) {
    for (int i = 0; i < r->region.n; i++)
        if (i != r->region.self)
            HVD_TRY(shmem_attach(region_part(&r->region, i), bytes_used(r, i, used[i]),
                                 addresses[i], err));
    HVD_TRY(enter(err));
    r->region.id = id;
    engine_add_region(world()->engine, &r->region);
    leave();
    return HVD_OK;
}

void hvd_region_close(hvd_region *r) {
    if (!enter(NULL)) {
        engine_remove_region(world()->engine, &r->region);
        leave();
    }
    shmem_release(r->region.memory, r->region.stride * (size_t)r->region.n, r->fd);
    free(r);
}

/* ---- the timeline ---- */

int hvd_timeline_start(const char *path, int mark_cycles, hvd_error *err) {
    HVD_TRY(enter(err));
    int code = job_start_timeline(&current->job, path, mark_cycles != 0, err);
    leave();
    return code;
}

int hvd_timeline_stop(hvd_error *err) {
    HVD_TRY(enter(err));
    timeline_stop(&current->job.timeline);
    leave();
    return HVD_OK;
}

/* ---- groups ---- */

int hvd_group_open(const void *mpi_comm, const int *ranks, int *group, hvd_error *err) {
    struct group *g;
    HVD_TRY(enter(err));
    struct job *job = &current->job;
    leave(); /* what follows is collective: who waits in it must not keep others from work */
    HVD_TRY(job_make_group(job, mpi_comm, ranks, &g, err));
    pthread_rwlock_wrlock(&lock);
    int code = job_add(&current->job, g, group, err);
    pthread_rwlock_unlock(&lock);
    if (code) group_close(g);
    return code;
}

/* Of the group with the id, or of all for -1. */
static void leave_groups(int id, const char *reason) {
    if (enter(NULL)) return;
    for (int i = 0; i < current->job.ngroups; i++) {
        struct group *g = job_group(&current->job, i);
        if (g && (id < 0 || i == id)) engine_leave(g->engine, reason);
    }
    leave();
}

static bool groups_ended(int id, double seconds) {
    if (enter(NULL)) return true;
    bool ended = true;
    for (int i = 0; i < current->job.ngroups && ended; i++) {
        struct group *g = job_group(&current->job, i);
        if (g && (id < 0 || i == id)) ended = engine_ended(g->engine, seconds);
    }
    leave();
    return ended;
}

void hvd_group_leave(int group, const char *reason) { leave_groups(group, reason); }

int hvd_group_wait_end(int group, double seconds) { return groups_ended(group, seconds); }

void hvd_group_close(int group) {
    if (enter(NULL)) return;
    leave();
    pthread_rwlock_wrlock(&lock);
    struct group *g = job_take(&current->job, group);
    pthread_rwlock_unlock(&lock);
    group_close(g);
}

/* ---- end ---- */

void hvd_leave(const char *reason) { leave_groups(-1, reason); }

int hvd_wait_end(double seconds) { return groups_ended(-1, seconds); }

void hvd_close(void) {
    if (enter(NULL)) return;
    leave();
    pthread_rwlock_wrlock(&lock);
    struct context *c = current;
    current = NULL;
    pthread_rwlock_unlock(&lock);
    if (!c) return;
    job_close(&c->job);
    free(c);
}

void hvd_mpi_built_for(char *text, size_t size) { transport_mpi_built_for(text, size); }

void hvd_mpi_loaded(char *text, size_t size) { transport_mpi_loaded(text, size); }
