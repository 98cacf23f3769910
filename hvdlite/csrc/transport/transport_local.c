/* The transport of ranks that are threads of one process, for the C tests. */
#include "transport/transports.h"

#include "base/os.h"
#include "transport/link.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct local_rank {
    struct transport transport;         /* first field, because self() casts its address */
    struct mutex mutex;                 /* guards the fields below */
    struct frames messages, *transfers; /* transfers: array by sender */
    unsigned events;
    bool broken;
    struct window window;
};

struct local_hub {
    int size;
    struct local_rank *ranks;
};

static struct local_rank *self(struct transport *t) { return (struct local_rank *)t; }

/* All ranks are in one array, so a rank can find the other ranks. */
static struct local_rank *peer(struct transport *t, int rank) {
    return self(t) - t->at.rank + rank;
}

static int deliver(struct transport *t, int to, bool message, const void *data, size_t size,
                   hvd_error *err) {
    struct frame *p = frame_new(t->at.rank, size);
    if (!p) return error_set(err, HVD_NO_MEMORY, "no memory for a frame of %zu bytes", size);
    if (size) memcpy(p->data, data, size);
    struct local_rank *r = peer(t, to);
    mutex_lock(&r->mutex);
    frames_add(message ? &r->messages : &r->transfers[t->at.rank], p);
    r->events++;
    mutex_notify(&r->mutex);
    mutex_unlock(&r->mutex);
    return HVD_OK;
}

static int check_broken(struct transport *t, hvd_error *err) {
    struct local_rank *r = self(t);
    mutex_lock(&r->mutex);
    bool broken = r->broken;
    mutex_unlock(&r->mutex);
    return broken ? error_set(err, HVD_TRANSPORT, "rank %d's link is broken", t->at.rank) : HVD_OK;
}

static int local_isend(struct transport *t, const void *data, size_t bytes, int to,
                       struct transfer *x, hvd_error *err) {
    HVD_TRY(check_broken(t, err));
    x->active = false;
    return deliver(t, to, false, data, bytes, err);
}

static int local_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                       hvd_error *err) {
    (void)from;
    x->handle[0] = (uint64_t)(uintptr_t)data;
    x->handle[1] = bytes;
    return check_broken(t, err);
}

/* A receive gets its data when it is tested. Collectives test receives in the order of posting. */
static int local_test(struct transport *t, struct transfer *x, hvd_error *err) {
    HVD_TRY(check_broken(t, err));
    struct local_rank *r = self(t);
    mutex_lock(&r->mutex);
    struct frame *p = frames_take(&r->transfers[x->peer], -1);
    mutex_unlock(&r->mutex);
    if (!p) return HVD_OK;
    assert(p->head.bytes == x->handle[1]);
    if (p->head.bytes) memcpy((void *)(uintptr_t)x->handle[0], p->data, p->head.bytes);
    frame_free(p);
    x->active = false;
    return HVD_OK;
}

static int local_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    return deliver(t, to, true, data, size, err);
}

static int local_receive(struct transport *t, struct message *message, hvd_error *err) {
    (void)err;
    struct local_rank *r = self(t);
    mutex_lock(&r->mutex);
    struct frame *p = frames_take(&r->messages, -1);
    mutex_unlock(&r->mutex);
    if (p) *message = (struct message){p->from, p->data, p->head.bytes};
    free(p);
    return HVD_OK;
}

static unsigned local_listen(struct transport *t) {
    struct local_rank *r = self(t);
    mutex_lock(&r->mutex);
    unsigned ticket = r->events;
    mutex_unlock(&r->mutex);
    return ticket;
}

static void local_sleep(struct transport *t, unsigned ticket, double seconds) {
    struct local_rank *r = self(t);
    mutex_lock(&r->mutex);
    if (r->events == ticket) mutex_wait(&r->mutex, seconds);
    mutex_unlock(&r->mutex);
}

static void local_wake(struct transport *t) {
    struct local_rank *r = self(t);
    mutex_lock(&r->mutex);
    r->events++;
    mutex_notify(&r->mutex);
    mutex_unlock(&r->mutex);
}

/* nothing to do: data is copied only when a receive is tested */
static void local_abandon(struct transport *t) { (void)t; }

static void local_close(struct transport *t, bool clean) {
    (void)t; /* the hub frees all ranks together, because a peer may still send to this rank */
    (void)clean;
}

static const struct transport_ops LOCAL_OPS = {
    .name = "threads",
    .isend = local_isend,
    .irecv = local_irecv,
    .test = local_test,
    .send = local_send,
    .receive = local_receive,
    .wake = local_wake,
    .listen = local_listen,
    .sleep = local_sleep,
    .abandon = local_abandon,
    .close = local_close,
};

static bool rank_init(struct local_rank *r, int rank, int size, const int *lowest) {
    struct transport *t = &r->transport;
    hvd_error no_memory;
    *t = (struct transport){.ops = &LOCAL_OPS,
                            .all = {t, rank, size},
                            .wakes = WAKES_MESSAGE,
                            .pace = PACE_DEFAULT,
                            .cost = COST_ON_A_HOST};
    mutex_init(&r->mutex);
    r->transfers = calloc((size_t)size, sizeof *r->transfers);
    if (!r->transfers || layout_open(&t->layout, &t->all, lowest, &no_memory)) return false;
    t->at = layout_topology(&t->layout, &t->all);
    return true;
}

struct local_hub *local_hub_on(int size, const int *lowest) {
    struct local_hub *hub = calloc(1, sizeof *hub);
    if (!hub) return NULL;
    hub->ranks = calloc((size_t)size, sizeof *hub->ranks);
    if (!hub->ranks) {
        free(hub);
        return NULL;
    }
    bool good = true;
    for (int i = 0; i < size; i++, hub->size++) good &= rank_init(&hub->ranks[i], i, size, lowest);
    if (good) return hub;
    local_hub_free(hub);
    return NULL;
}

struct local_hub *local_hub_new(int size, int per_host) {
    int *lowest = malloc((size_t)size * sizeof *lowest);
    if (!lowest) return NULL;
    for (int i = 0; i < size; i++) lowest[i] = per_host ? i - i % per_host : 0;
    struct local_hub *hub = local_hub_on(size, lowest);
    free(lowest);
    return hub;
}

/* Gives the ranks of a comm a window. The comm's rank 0 frees the window's memory. */
static bool share(struct local_hub *hub, const struct comm *host) {
    size_t bytes = window_bytes(host->size);
    void *memory = aligned_alloc(alignof(struct window_rank), bytes);
    if (!memory) return false;
    memset(memory, 0, bytes);
    for (int i = 0; i < host->size; i++) {
        struct local_rank *r = &hub->ranks[host->ranks[i]];
        window_init(&r->window, memory, host->size, i);
        r->transport.layout.host.window = &r->window;
        r->transport.layout.windows = true;
        if (host->size == hub->size) r->transport.all.window = &r->window;
    }
    return true;
}

bool local_hub_share(struct local_hub *hub) {
    bool good = true;
    for (int i = 0; i < hub->size; i++) {
        const struct comm *host = &hub->ranks[i].transport.layout.host;
        if (host->rank == 0) good &= share(hub, host);
    }
    return good;
}

void local_hub_free(struct local_hub *hub) {
    for (int i = 0; i < hub->size; i++) {
        struct local_rank *r = &hub->ranks[i];
        frames_drain(&r->messages);
        for (int j = 0; r->transfers && j < hub->size; j++) frames_drain(&r->transfers[j]);
        free(r->transfers);
        if (r->transport.at.local_rank == 0) free(r->window.ranks);
        layout_close(&r->transport.layout);
        mutex_destroy(&r->mutex);
    }
    free(hub->ranks);
    free(hub);
}

struct transport *local_hub_rank(struct local_hub *hub, int rank) {
    return &hub->ranks[rank].transport;
}

void local_hub_break(struct local_hub *hub, int rank) {
    struct local_rank *r = &hub->ranks[rank];
    mutex_lock(&r->mutex);
    r->broken = true;
    mutex_unlock(&r->mutex);
}
