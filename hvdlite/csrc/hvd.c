#define _POSIX_C_SOURCE 200809L /* rwlocks */
#include "hvd.h"

#include "engine.h"
#include "env.h"
#include "shared.h"
#include "transport_mpi.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct context {
    struct transport *transport;
    struct engine *engine;
    pid_t process; /* a forked child has the memory, but neither the thread nor MPI */
};

/* The one pointer to the process's context; whoever uses it holds the lock for reading. */
static struct context *current;
static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;

static int enter(hvd_error *err) {
    pthread_rwlock_rdlock(&lock);
    if (current && current->process == getpid()) return HVD_OK;
    bool forked = current != NULL;
    pthread_rwlock_unlock(&lock);
    return error_set(
        err, HVD_NOT_INITIALIZED,
        forked ? "this process was forked after hvdlite.init(): a child can't take part in the job"
               : "hvdlite has not been initialized; use hvdlite.init()");
}

static void leave(void) { pthread_rwlock_unlock(&lock); }

/* ---- start ---- */

static int read_log_level(enum log_level *level, hvd_error *err) {
    const char *text = env_text("LOG_LEVEL");
    *level = text ? log_parse(text, LOG_UNKNOWN) : LOG_WARNING;
    if (*level != LOG_UNKNOWN) return HVD_OK;
    return error_set(
        err, HVD_INVALID,
        "HVDLITE_LOG_LEVEL is '%s': expected trace, debug, info, warning, error, fatal or off",
        text);
}

static int read_config(struct engine_config *config, double *timeout, hvd_error *err) {
    *config = (struct engine_config){
        .fusion_bytes = 64 << 20, .cache_capacity = 4096, .stall_warning = 60, .stall_failure = 0};
    HVD_TRY(read_log_level(&config->log.level, err));
    HVD_TRY(env_size("FUSION_THRESHOLD", &config->fusion_bytes, err));
    HVD_TRY(env_size("CACHE_CAPACITY", &config->cache_capacity, err));
    HVD_TRY(env_seconds("STALL_CHECK_TIME_SECONDS", &config->stall_warning, err));
    HVD_TRY(env_seconds("STALL_SHUTDOWN_TIME_SECONDS", &config->stall_failure, err));
    return env_seconds("DATA_TIMEOUT_SECONDS", timeout, err);
}

static int start(struct context *c, const void *mpi_comm, hvd_error *err) {
    struct engine_config config;
    double timeout = 300;
    const char *window = env_text("WINDOW");
    HVD_TRY(transport_mpi_open(&c->transport, mpi_comm, !window || strcmp(window, "0") != 0, err));
    HVD_TRY(transport_mpi_agree(c->transport, read_config(&config, &timeout, err), err));
    c->transport->timeout = timeout;
    c->process = getpid();
    config.log.rank = c->transport->at.rank;
    config.log.size = c->transport->at.size;
    if (c->transport->no_window.code)
        log_line(&config.log, LOG_WARNING, "everything goes through MPI, which is slower: %s",
                 c->transport->no_window.text);
    log_line(&config.log, LOG_INFO,
             "local rank %d of %d, %s window, fusion %zu bytes, cache %zu tensors",
             c->transport->at.local_rank, c->transport->at.local_size,
             c->transport->window ? "with a" : "no", config.fusion_bytes, config.cache_capacity);
    return engine_start(&c->engine, c->transport, &config, err);
}

int hvd_init(const void *mpi_comm, hvd_error *err) {
    pthread_rwlock_wrlock(&lock);
    int code = current ? error_set(err, HVD_INVALID, "hvdlite is initialized already") : HVD_OK;
    struct context *c = code ? NULL : calloc(1, sizeof *c);
    if (!code && !c) code = error_set(err, HVD_NO_MEMORY, "no memory for the context");
    if (!code) code = start(c, mpi_comm, err);
    if (!code) {
        current = c;
    } else if (c) {
        if (c->transport) transport_close(c->transport, false);
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
    struct topology at = current->transport->at;
    leave();
    *out = (hvd_topology){at.rank,       at.size,       at.local_rank,
                          at.local_size, at.cross_rank, at.cross_size};
    return HVD_OK;
}

int hvd_check(hvd_error *err) {
    HVD_TRY(enter(err));
    bool failed = engine_failed(current->engine, err);
    leave();
    return failed ? err->code : HVD_OK;
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
    strcpy(r->name, from->name);
    r->kind = from->kind;
    r->dtype = from->dtype;
    r->op = from->op;
    r->root = from->root;
    r->priority = from->priority;
    r->prescale = from->prescale;
    r->postscale = from->postscale;
    r->codec = (struct codec){from->codec, from->parameter};
    r->ndim = from->ndim;
    if (from->ndim) memcpy(r->dims, from->dims, (size_t)from->ndim * sizeof *r->dims);
    to->in = from->in;
    to->out = from->out;
    to->out_rows = from->out_rows;
    to->residual = from->residual;
    return HVD_OK;
}

int hvd_validate(const hvd_tensor *tensor, hvd_error *err) {
    struct tensor work;
    hvd_topology at;
    HVD_TRY(translate(tensor, &work, err));
    HVD_TRY(hvd_check(err));
    HVD_TRY(hvd_where(&at, err));
    return request_check(&work.request, at.size, err);
}

int hvd_submit(const hvd_tensor *tensor, hvd_complete *complete, void *arg, hvd_error *err) {
    struct tensor work = {.complete = complete, .arg = arg};
    HVD_TRY(translate(tensor, &work, err));
    HVD_TRY(enter(err));
    int code = engine_submit(current->engine, &work, err);
    leave();
    return code;
}

struct hvd_handle {
    struct monitor monitor; /* guards what follows */
    bool done;
    hvd_error error;
};

static void complete_handle(void *arg, const hvd_error *error) {
    hvd_handle *h = arg;
    monitor_lock(&h->monitor);
    if (error) h->error = *error;
    h->done = true;
    monitor_notify(&h->monitor);
    monitor_unlock(&h->monitor);
}

static void free_handle(hvd_handle *h) {
    monitor_destroy(&h->monitor);
    free(h);
}

hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err) {
    hvd_handle *h = calloc(1, sizeof *h);
    if (!h) {
        error_set(err, HVD_NO_MEMORY, "no memory for a handle");
        return NULL;
    }
    monitor_init(&h->monitor);
    if (hvd_submit(tensor, complete_handle, h, err) == HVD_OK) return h;
    free_handle(h);
    return NULL;
}

int hvd_finish(hvd_handle *h, double seconds, hvd_error *err) {
    monitor_lock(&h->monitor);
    if (!h->done) monitor_wait(&h->monitor, seconds);
    bool done = h->done;
    if (done) *err = h->error;
    monitor_unlock(&h->monitor);
    if (done) free_handle(h);
    return done;
}

int hvd_get_stats(hvd_stats *out, hvd_error *err) {
    HVD_TRY(enter(err));
    struct engine_counts counts = engine_counts(current->engine);
    leave();
    *out = (hvd_stats){counts.bytes_transferred, counts.bytes_in_window, counts.tensors,
                       counts.batches};
    return HVD_OK;
}

/* ---- regions ---- */

struct hvd_region {
    struct region region; /* first: the engine knows no more */
    size_t bytes;         /* of all parts */
};

/* The topology of a job that can have regions: all ranks in one window. */
static int where_on_window(hvd_topology *at, hvd_error *err) {
    HVD_TRY(hvd_where(at, err));
    HVD_TRY(enter(err));
    bool window = current->transport->window && at->local_size == at->size;
    leave();
    return window ? HVD_OK
                  : error_set(err, HVD_UNSUPPORTED, "the ranks of this job do not share memory");
}

static hvd_region *add_region(int id, size_t bytes, void *memory, const hvd_topology *at,
                              hvd_error *err) {
    hvd_region *r = calloc(1, sizeof *r);
    if (!r || enter(err)) {
        shared_close(memory, bytes * (size_t)at->local_size);
        free(r);
        if (!r) error_set(err, HVD_NO_MEMORY, "no memory for a region");
        return NULL;
    }
    r->region = (struct region){
        .id = id, .memory = memory, .stride = bytes, .n = at->local_size, .self = at->local_rank};
    r->bytes = bytes * (size_t)at->local_size;
    engine_add_region(current->engine, &r->region);
    leave();
    return r;
}

hvd_region *hvd_region_create(int id, size_t bytes, char name[HVD_REGION_NAME], hvd_error *err) {
    hvd_topology at;
    void *memory;
    if (where_on_window(&at, err)) return NULL;
    if (shared_create(&memory, bytes * (size_t)at.local_size, name, err)) return NULL;
    hvd_region *region = add_region(id, bytes, memory, &at, err);
    if (!region) shared_unlink(name);
    return region;
}

_Static_assert(HVD_REGION_NAME == SHARED_NAME, "a region's name is its memory's");

hvd_region *hvd_region_open(int id, size_t bytes, const char *name, hvd_error *err) {
    hvd_topology at;
    void *memory;
    if (where_on_window(&at, err)) return NULL;
    if (shared_open(&memory, bytes * (size_t)at.local_size, name, err)) return NULL;
    return add_region(id, bytes, memory, &at, err);
}

void hvd_region_unlink(const char *name) { shared_unlink(name); }

void *hvd_region_memory(hvd_region *r) { return region_part(&r->region, r->region.self); }

void hvd_region_close(hvd_region *r) {
    if (!enter(NULL)) {
        engine_remove_region(current->engine, &r->region);
        leave();
    }
    shared_close(r->region.memory, r->bytes);
    free(r);
}

/* ---- end ---- */

void hvd_leave(const char *reason) {
    if (enter(NULL)) return;
    engine_leave(current->engine, reason);
    leave();
}

int hvd_wait_end(double seconds) {
    if (enter(NULL)) return 1;
    bool ended = engine_ended(current->engine, seconds);
    leave();
    return ended;
}

void hvd_close(void) {
    if (enter(NULL)) return;
    leave();
    pthread_rwlock_wrlock(&lock);
    struct context *c = current;
    current = NULL;
    pthread_rwlock_unlock(&lock);
    if (!c) return;
    hvd_error why;
    bool clean = engine_ended(c->engine, 0) && !engine_failed(c->engine, &why);
    engine_stop(c->engine);
    transport_close(c->transport, clean);
    free(c);
}

void hvd_mpi_built_for(char *text, size_t size) { transport_mpi_built_for(text, size); }

void hvd_mpi_loaded(char *text, size_t size) { transport_mpi_loaded(text, size); }
