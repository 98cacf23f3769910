/* The transport between simulated ranks. Each pair of ranks on different hosts has a stream, which
 * sends messages one after the other over SimGrid's links. Large data is sent without contents. */
#define _GNU_SOURCE /* MAP_ANONYMOUS */
#include "base/os.h"
#include "collectives/costs.h"
#include "parcel.h"
#include "sim.h"

#include <assert.h>
#include <math.h>
#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <simgrid/semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { KEPT = 4096, STACK = 64 << 10 };

struct wire {
    struct queue queue;
    sg_sem_t ready; /* NULL until the stream is used */
};

struct sim_rank {
    struct transport transport; /* must be the first member, for the cast in self() */
    struct sim_network *network;
    struct mutex mutex;
    unsigned events;
    struct queue messages, *transfers; /* by the sending rank */
    struct wire *streams, arriving;    /* streams: by the receiving rank */
    struct window window;
    struct sim_counts counts;
};

struct sim_network {
    int size, ranks_a_host;
    struct sim_costs costs;
    struct sim_rank *ranks;
    /* by host, a time: the link may send at once what its rate allows since then (at most burst) */
    double *busy;
};

static struct sim_rank *self(const struct transport *t) { return (struct sim_rank *)(void *)t; }

static void ring(struct sim_rank *r) {
    r->events++;
    mutex_notify(&r->mutex);
}

static void arrive(struct sim_rank *r, struct parcel *p) {
    put(p->message ? &r->messages : &r->transfers[p->from], p);
    ring(r);
}

static void wire_put(struct wire *w, struct parcel *p) {
    put(&w->queue, p);
    sg_sem_release(w->ready);
}

static struct parcel *wire_take(struct wire *w) {
    sg_sem_acquire(w->ready);
    return take(&w->queue);
}

/* ---- the actors that move parcels ---- */

static sg_host_t host_of(const struct sim_network *n, int rank) {
    char name[32];
    snprintf(name, sizeof name, "h%d", rank / n->ranks_a_host);
    return sg_host_by_name(name);
}

/* A link passes a burst without pacing, like a token bucket. Returns the bytes that are paced. */
static double after_burst(struct sim_network *n, int rank, double bytes) {
    double *busy = &n->busy[rank / n->ranks_a_host], now = simgrid_get_clock();
    double saved = fmin((now - *busy) * n->costs.rate, n->costs.burst);
    if (saved <= 0) return bytes;
    double used = fmin(saved, bytes);
    *busy = now - (saved - used) / n->costs.rate;
    return bytes - used;
}

struct way {
    struct sim_network *network;
    struct wire *wire;
    int from, to;
};

/* Sends the parcels of a stream in order. Headers do not count: the rate of a link is the rate of
 * data. */
static void stream(int argc, char **argv) {
    (void)argc, (void)argv;
    struct way *way = sg_actor_self_get_data();
    struct sim_network *n = way->network;
    sg_host_t from = host_of(n, way->from), to = host_of(n, way->to);
    for (;;) {
        struct parcel *p = wire_take(way->wire);
        double paced = after_burst(n, way->from, (double)p->size + 1);
        if (paced > 0) sg_host_sendto(from, to, paced);
        if (paced > 0) n->busy[way->from / n->ranks_a_host] = simgrid_get_clock();
        p->due = simgrid_get_clock() + n->costs.latency;
        wire_put(&n->ranks[p->to].arriving, p);
    }
}

static void courier(int argc, char **argv) {
    (void)argc, (void)argv;
    struct way *way = sg_actor_self_get_data();
    for (;;) {
        struct parcel *p = wire_take(way->wire);
        if (p->due > simgrid_get_clock()) sg_actor_sleep_until(p->due);
        arrive(&way->network->ranks[p->to], p);
    }
}

static bool start(struct way way, const char *name, void (*run)(int, char **)) {
    struct way *kept = malloc(sizeof *kept);
    if (!kept) return false;
    *kept = way;
    way.wire->ready = sg_sem_init(0);
    sg_actor_t actor = sg_actor_init(name, host_of(way.network, way.from));
    sg_actor_set_data(actor, kept);
    sg_actor_set_stacksize(actor, STACK);
    sg_actor_start(actor, run, 0, NULL);
    sg_actor_daemonize(actor);
    return true;
}

/* ---- the transport ---- */

static void count(struct sim_network *n, const struct parcel *p) {
    struct sim_counts *from = &n->ranks[p->from].counts;
    if (!p->message) from->data++, from->bytes += p->size;
    if (p->message) from->sent++, n->ranks[p->to].counts.received++;
}

/* Simulates the CPU time of a message at either end. Between ranks of one host, bytes cost nothing
 * here, because data goes through the window. */
static void handle(const struct transport *t, const struct parcel *p) {
    const struct sim_network *n = self(t)->network;
    bool here = p->from / n->ranks_a_host == p->to / n->ranks_a_host;
    sim_work(n->costs.message + (here ? 0 : (double)p->size * n->costs.byte));
}

/* Sends the parcel, and takes over its memory. */
static int dispatch(struct transport *t, struct parcel *p, hvd_error *err) {
    struct sim_rank *from = self(t);
    handle(t, p);
    if (t->layout.host_of[p->to] == t->layout.host_of[p->from]) {
        arrive(from - p->from + p->to, p);
        return HVD_OK;
    }
    struct wire *wire = &from->streams[p->to];
    if (!wire->ready && !start((struct way){from->network, wire, p->from, p->to}, "stream", stream))
        return error_set(err, HVD_NO_MEMORY, "no memory for a stream");
    wire_put(wire, p);
    return HVD_OK;
}

static int deliver(struct transport *t, int to, bool message, const void *data, size_t size,
                   hvd_error *err) {
    bool kept = message || size <= KEPT;
    struct parcel *p = malloc(sizeof *p + (kept ? size : 0));
    if (!p) return error_set(err, HVD_NO_MEMORY, "no memory for a parcel of %zu bytes", size);
    *p = (struct parcel){.from = t->at.rank, .to = to, .message = message, .size = size};
    if (kept && size) memcpy(p->data, data, size);
    count(self(t)->network, p);
    return dispatch(t, p, err);
}

static int sim_isend(struct transport *t, const void *data, size_t bytes, int to,
                     struct transfer *x, hvd_error *err) {
    x->active = false;
    return deliver(t, to, false, data, bytes, err);
}

static int sim_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                     hvd_error *err) {
    (void)t, (void)from, (void)err;
    x->handle[0] = (uint64_t)(uintptr_t)data;
    x->handle[1] = bytes;
    return HVD_OK;
}

/* Receives complete in the order in which they are tested. This is right because collectives wait
 * for receives in the order in which they posted the receives. */
static int sim_test(struct transport *t, struct transfer *x, hvd_error *err) {
    (void)err;
    struct parcel *p = take(&self(t)->transfers[x->peer]);
    if (!p) return HVD_OK;
    assert(p->size == x->handle[1]);
    if (p->size && p->size <= KEPT) memcpy((void *)(uintptr_t)x->handle[0], p->data, p->size);
    handle(t, p);
    free(p);
    x->active = false;
    return HVD_OK;
}

static int sim_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    return deliver(t, to, true, data, size, err);
}

static int sim_receive(struct transport *t, struct message *message, hvd_error *err) {
    struct parcel *p = take(&self(t)->messages);
    if (!p) return HVD_OK;
    *message = (struct message){p->from, malloc(p->size + 1), p->size};
    if (message->data) memcpy(message->data, p->data, p->size);
    handle(t, p);
    free(p);
    return message->data ? HVD_OK : error_set(err, HVD_NO_MEMORY, "no memory for a message");
}

static unsigned sim_listen(struct transport *t) { return self(t)->events; }

static void sim_sleep(struct transport *t, unsigned ticket, double seconds) {
    struct sim_rank *r = self(t);
    mutex_lock(&r->mutex);
    bool sleeps = r->events == ticket;
    if (sleeps) mutex_wait(&r->mutex, seconds);
    mutex_unlock(&r->mutex);
    if (sleeps) sim_work(r->network->costs.wake);
}

static void sim_wake(struct transport *t) { ring(self(t)); }

/* nothing to do, because receives copy data only when they are tested */
static void sim_abandon(struct transport *t) { (void)t; }

static const struct transport_ops SIM_OPS = {
    .name = "the simulator",
    .isend = sim_isend,
    .irecv = sim_irecv,
    .test = sim_test,
    .send = sim_send,
    .receive = sim_receive,
    .wake = sim_wake,
    .listen = sim_listen,
    .sleep = sim_sleep,
    .abandon = sim_abandon,
};

/* ---- parcels of a parameter server ---- */

void sim_network_put(struct sim_network *n, int from, int to, int tag, size_t bytes) {
    struct sim_rank *r = &n->ranks[from];
    struct parcel *p = malloc(sizeof *p + sizeof tag);
    hvd_error err = {0};
    if (p) {
        *p = (struct parcel){.from = from, .to = to, .message = true, .size = bytes};
        memcpy(p->data, &tag, sizeof tag);
        r->counts.data++, r->counts.bytes += bytes;
        if (!dispatch(&r->transport, p, &err)) return;
    }
    fprintf(stderr, "no memory for a parcel: %s\n", err.text);
    exit(1);
}

int sim_network_next(struct sim_network *n, int rank) {
    struct sim_rank *r = &n->ranks[rank];
    int tag;
    mutex_lock(&r->mutex);
    while (!r->messages.first) mutex_wait(&r->mutex, 1e9);
    struct parcel *p = take(&r->messages);
    mutex_unlock(&r->mutex);
    handle(&r->transport, p);
    memcpy(&tag, p->data, sizeof tag);
    free(p);
    return tag;
}

/* ---- replaces the core's function of this name, by the linker's option --wrap ---- */

void __wrap_comm_count_window(const struct comm *comm, size_t bytes);

void __wrap_comm_count_window(const struct comm *comm, size_t bytes) {
    sim_work((double)bytes * self(comm->transport)->network->costs.memory_byte);
}

/* ---- the network ---- */

static bool open_rank(struct sim_network *n, int rank, const int *lowest) {
    struct sim_rank *r = &n->ranks[rank];
    struct transport *t = &r->transport;
    hvd_error err;
    r->network = n;
    *t = (struct transport){
        .ops = &SIM_OPS, .all = {t, rank, n->size}, .wakes = WAKES_DATA, .pace = PACE_DEFAULT};
    mutex_init(&r->mutex);
    r->transfers = calloc((size_t)n->size, sizeof *r->transfers);
    r->streams = calloc((size_t)n->size, sizeof *r->streams);
    if (!r->transfers || !r->streams || layout_open(&t->layout, &t->all, lowest, &err))
        return false;
    t->at = layout_topology(&t->layout, &t->all);
    return start((struct way){n, &r->arriving, rank, rank}, "courier", courier);
}

/* Gives the ranks of a host their window. */
static bool share(struct sim_network *n, int host) {
    int many = n->ranks_a_host;
    size_t bytes = window_bytes(many);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* the mapped pages take no memory until they are written */
    if (memory == MAP_FAILED) return false;
    for (int i = 0; i < many; i++) {
        struct sim_rank *r = &n->ranks[host * many + i];
        window_init(&r->window, memory, many, i);
        r->transport.layout.host.window = &r->window;
        r->transport.layout.windows = true;
        if (many == n->size) r->transport.all.window = &r->window;
    }
    return true;
}

struct sim_network *sim_network_new(int hosts, int ranks_a_host, const struct sim_costs *costs) {
    struct sim_network *n = calloc(1, sizeof *n);
    int size = hosts * ranks_a_host, *lowest = calloc((size_t)size, sizeof *lowest);
    if (!n || !lowest) return NULL;
    *n = (struct sim_network){size, ranks_a_host, *costs, calloc((size_t)size, sizeof *n->ranks),
                              calloc((size_t)hosts, sizeof *n->busy)};
    for (int i = 0; i < size; i++) lowest[i] = i - i % ranks_a_host;
    bool good = n->ranks && n->busy;
    for (int i = 0; i < size && good; i++) good = open_rank(n, i, lowest);
    for (int i = 0; i < hosts && good && ranks_a_host > 1; i++) good = share(n, i);
    free(lowest);
    return good ? n : NULL;
}

struct transport *sim_network_rank(struct sim_network *n, int rank) {
    return &n->ranks[rank].transport;
}

struct sim_counts *sim_network_counts(struct sim_network *n, int rank) {
    return &n->ranks[rank].counts;
}
