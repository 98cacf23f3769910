/* The transport over stream sockets. */
#include "transport/transports.h"

#include "base/os.h"
#include "base/poller.h"
#include "transport/channel.h"
#include "transport/on_host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tcp_transport {
    struct transport transport; /* first field, because self() casts its address */
    /* the transport of all ranks; only this transport learns of lost hosts */
    struct transport *job;
    struct net *net; /* the job's net; the transport of all ranks closes the net */
    struct channel *channel;
    int *peers;   /* by rank: the rank's number in the job */
    int *members; /* by rank of the job: its rank in this group, or NOBODY */
    struct bell bell;
    atomic_bool by_doorbell; /* true: all ranks share a window, so doorbells wake them */
    struct on_host shm;
};

static struct tcp_transport *self(struct transport *t) { return (struct tcp_transport *)t; }

/* ---- data ---- */

/* The last steps of isend and irecv. */
static int set_handle(struct tcp_transport *m, struct transfer *x, struct frame **p, int code) {
    net_unlock(m->net);
    x->handle[0] = (uint64_t)(uintptr_t)*p;
    x->active = *p != NULL;
    return code;
}

static int tcp_isend(struct transport *t, const void *data, size_t bytes, int to,
                     struct transfer *x, hvd_error *err) {
    struct tcp_transport *m = self(t);
    struct frame *p = NULL;
    net_lock(m->net);
    return set_handle(m, x, &p, channel_isend(m->channel, data, bytes, m->peers[to], &p, err));
}

static int tcp_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                     hvd_error *err) {
    struct tcp_transport *m = self(t);
    struct frame *p = NULL;
    net_lock(m->net);
    return set_handle(m, x, &p, channel_irecv(m->channel, data, bytes, m->peers[from], &p, err));
}

static int tcp_test(struct transport *t, struct transfer *x, hvd_error *err) {
    struct tcp_transport *m = self(t);
    struct frame *p = (struct frame *)(uintptr_t)x->handle[0];
    net_lock(m->net);
    if (!p->complete) net_look(m->net);
    x->active = !p->complete;
    if (p->complete) channel_done(m->channel, p);
    bool broken = x->active && net_is_cut(m->net, m->peers[x->peer]);
    int code = channel_check(m->channel, NOBODY, INFINITY, err);
    net_unlock(m->net);
    if (code) return code;
    if (broken)
        return error_set(err, HVD_TRANSPORT, "the connection for data with rank %d has broken",
                         transport_job_rank(t, x->peer));
    /* before an engine runs, this function must look for deaths; later the engine does */
    return x->active && !t->patience.meanwhile ? transport_check_life(t, err) : HVD_OK;
}

static void tcp_abandon(struct transport *t) {
    struct tcp_transport *m = self(t);
    net_lock(m->net);
    channel_abandon(m->channel);
    net_unlock(m->net);
}

/* ---- messages ---- */

static void tcp_wake(struct transport *t) {
    struct tcp_transport *m = self(t);
    bell_ring(&m->bell);
    if (atomic_load(&m->by_doorbell)) doorbell_ring(m->shm.doorbell);
}

static int send_by_stream(struct tcp_transport *m, int to, const void *data, size_t size,
                          hvd_error *err) {
    net_lock(m->net);
    int code = channel_send(m->channel, m->peers[to], data, size, err);
    net_unlock(m->net);
    return code;
}

static int tcp_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    struct tcp_transport *m = self(t);
    if (!atomic_load(&m->by_doorbell)) return send_by_stream(m, to, data, size, err);
    if (on_host_reaches(&m->shm, t, to)) return on_host_send(&m->shm, t, to, data, size, err);
    HVD_TRY(send_by_stream(m, to, data, size, err));
    doorbell_ring(&m->shm.host.window.ranks[to].doorbell);
    return HVD_OK;
}

static int check_channel(struct tcp_transport *m, int from, double patience, hvd_error *err) {
    net_lock(m->net);
    int code = channel_check(m->channel, from, patience, err);
    net_unlock(m->net);
    return code;
}

static void take_message(struct tcp_transport *m, int from, void (*look)(struct net *),
                         struct message *to) {
    net_lock(m->net);
    struct frame *p = channel_take(m->channel, from);
    if (!p) look(m->net);
    if (!p) p = channel_take(m->channel, from);
    net_unlock(m->net);
    if (!p) return;
    *to = (struct message){m->members[p->from], p->data, p->head.bytes};
    free(p);
}

static int tcp_receive(struct transport *t, struct message *message, hvd_error *err) {
    struct tcp_transport *m = self(t);
    bool by_doorbell = atomic_load(&m->by_doorbell);
    double patience = m->channel->group ? CAUSE_COMES_FIRST : INFINITY;
    if (by_doorbell) HVD_TRY(on_host_receive(&m->shm, t, message, err));
    if (!message->data) take_message(m, NOBODY, by_doorbell ? net_look_seldom : net_look, message);
    return message->data ? HVD_OK : check_channel(m, NOBODY, patience, err);
}

/* ---- sleeping ---- */

static unsigned tcp_listen(struct transport *t) {
    struct tcp_transport *m = self(t);
    return atomic_load(&m->by_doorbell) ? doorbell_listen(m->shm.doorbell) : bell_listen(&m->bell);
}

/* Returns true while data waits for something that no event reports, such as room in a mailbox. */
static bool tcp_polls(struct transport *t) {
    struct tcp_transport *m = self(t);
    bool by_doorbell = atomic_load(&m->by_doorbell);
    net_lock(m->net);
    bool polls = by_doorbell ? net_sends(m->net) : net_tries_again(m->net);
    net_unlock(m->net);
    return polls || (by_doorbell && host_waits(&m->shm.host));
}

static void tcp_sleep(struct transport *t, unsigned ticket, double seconds) {
    struct tcp_transport *m = self(t);
    if (atomic_load(&m->by_doorbell))
        doorbell_sleep(m->shm.doorbell, ticket, seconds);
    else
        bell_sleep(&m->bell, ticket, m->net->epoll, seconds);
    net_lock(m->net);
    net_look(m->net);
    net_unlock(m->net);
}

/* ---- opening ---- */

/* Only the opening of a job has a time limit: ranks may open groups at different times. */
static int check_opening(struct tcp_transport *m, int from, double seconds, hvd_error *err) {
    HVD_TRY(transport_check_life(m->job, err));
    HVD_TRY(check_channel(m, m->peers[from], 0, err));
    return m->job == &m->transport ? comm_check_wait(m->job, from, seconds, err) : HVD_OK;
}

/* Waits for the rank's next message, of `bytes` bytes, before the group's engine runs. */
static int await_bytes(struct tcp_transport *m, int from, void *to, size_t bytes, hvd_error *err) {
    static const double LOOK = 0.5; /* seconds between two checks; data ends the sleep sooner */
    double since = clock_now();
    struct message message = {.from = NOBODY};
    int code = HVD_OK;
    transport_await(m->job, m->peers[from], 1);
    while (!code) {
        unsigned ticket = bell_listen(&m->bell);
        take_message(m, m->peers[from], net_look, &message);
        if (message.data) break;
        code = check_opening(m, from, clock_now() - since, err);
        if (!code) bell_sleep(&m->bell, ticket, m->net->epoll, LOOK);
    }
    transport_await(m->job, m->peers[from], -1);
    if (!code && message.size != bytes)
        code = channel_cut(m->net, m->peers[from], message.size, bytes, err);
    if (!code) memcpy(to, message.data, bytes);
    free(message.data);
    return code;
}

/* Ranks send their bytes to rank 0, which sends all bytes to every rank. */
static int tcp_gather(struct transport *t, void *all, size_t each, hvd_error *err) {
    struct tcp_transport *m = self(t);
    int size = t->all.size, rank = t->all.rank;
    char *rows = all;
    if (rank) {
        HVD_TRY(send_by_stream(m, 0, rows + (size_t)rank * each, each, err));
        return await_bytes(m, 0, all, (size_t)size * each, err);
    }
    for (int r = 1; r < size; r++) HVD_TRY(await_bytes(m, r, rows + (size_t)r * each, each, err));
    for (int r = 1; r < size; r++) HVD_TRY(send_by_stream(m, r, all, (size_t)size * each, err));
    return HVD_OK;
}

static void ring_bell(void *transport) { tcp_wake(transport); }

static void tcp_died(struct transport *t, int rank, enum fate fate) {
    struct tcp_transport *m = self(t);
    net_lock(m->net);
    net_bury(m->net, m->peers[rank], fate); /* notifies all groups of the job */
    net_unlock(m->net);
}

static void note_lost_peer(void *transport, int peer) {
    struct tcp_transport *m = self(transport);
    int rank = m->members[peer];
    if (rank != NOBODY) transport_note_death(transport, rank, m->net->peers[peer].fate);
}

/* `ranks` NULL: all ranks of the job. */
static int number_ranks(struct tcp_transport *m, const int *ranks, hvd_error *err) {
    int size = m->transport.all.size, all = m->net->size;
    m->peers = calloc((size_t)size, sizeof *m->peers);
    m->members = calloc((size_t)all, sizeof *m->members);
    if (!m->peers || !m->members)
        return error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", all);
    for (int r = 0; r < all; r++) m->members[r] = NOBODY;
    for (int r = 0; r < size; r++) {
        int peer = ranks ? ranks[r] : r;
        if (peer < 0 || peer >= all || m->members[peer] != NOBODY)
            return error_set(err, HVD_INVALID, "rank %d of a group is repeated, or is not below %d",
                             peer, all);
        m->peers[r] = peer;
        m->members[peer] = r;
    }
    if (ranks) m->transport.job_ranks = m->peers;
    m->transport.all.rank = m->members[m->net->rank];
    if (m->transport.all.rank != NOBODY) return HVD_OK;
    return error_set(err, HVD_INVALID, "rank %d is not in the group that it opens", m->net->rank);
}

/* hosts: by rank of the job, the number of the rank's host. */
static int open_here(struct tcp_transport *m, const int *hosts,
                     const struct transport_config *config, hvd_error *err) {
    int size = m->transport.all.size, *lowest = calloc((size_t)size, sizeof *lowest);
    if (!lowest) return error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", size);
    for (int r = 0; r < size; r++)
        while (hosts[m->peers[lowest[r]]] != hosts[m->peers[r]]) lowest[r]++;
    int code = on_host_open(&m->shm, &m->transport, lowest, config, err);
    free(lowest);
    return code;
}

static int open_all(struct tcp_transport *m, const int *ranks, const int *hosts, int number,
                    const struct transport_config *config, hvd_error *err) {
    int bell = bell_open(&m->bell, err);
    HVD_TRY(number_ranks(m, ranks, err));
    net_lock(m->net); /* open the channel first: its close tells all ranks of a later failure */
    int code = channel_open(&m->channel, m->net, (uint32_t)number,
                            (struct channel_owner){ring_bell, note_lost_peer, m}, err);
    net_unlock(m->net);
    HVD_TRY(code ? code : bell);
    HVD_TRY(open_here(m, hosts, config, err));
    atomic_store(&m->by_doorbell, m->transport.all.window != NULL);
    if (ranks) on_host_unwatch(&m->shm); /* the job's transport watches all processes */
    return HVD_OK;
}

/* Takes no lock: another thread of the parent may have held it at the fork. */
static void tcp_forked(struct transport *t) { net_close_in_child(self(t)->net); }

static void close_channel(struct tcp_transport *m, bool clean) {
    if (!clean) channel_over(m->net, m->channel->group, m->peers, m->transport.all.size);
    net_lock(m->net);
    channel_close(m->channel);
    net_unlock(m->net);
}

static void tcp_close(struct transport *t, bool clean) {
    struct tcp_transport *m = self(t);
    if (m->channel) close_channel(m, clean); /* first: through it, other groups ring the doorbell */
    on_host_close(&m->shm, t, clean);
    if (m->job == t) net_close(m->net, clean);
    bell_close(&m->bell);
    free(m->peers);
    free(m->members);
    free(m);
}

static const struct transport_ops TCP_OPS = {
    .name = "sockets",
    .isend = tcp_isend,
    .irecv = tcp_irecv,
    .test = tcp_test,
    .send = tcp_send,
    .receive = tcp_receive,
    .wake = tcp_wake,
    .listen = tcp_listen,
    .polls = tcp_polls,
    .sleep = tcp_sleep,
    .gather = tcp_gather,
    .died = tcp_died,
    .forked = tcp_forked,
    .abandon = tcp_abandon,
    .close = tcp_close,
};

/* job NULL: the new transport is the transport of all ranks. */
static struct tcp_transport *new_transport(struct net *n, struct transport *job, int size,
                                           hvd_error *err) {
    struct tcp_transport *m = aligned_alloc(_Alignof(struct tcp_transport), sizeof *m);
    if (!m) return error_set(err, HVD_NO_MEMORY, "no memory for the transport"), NULL;
    *m = (struct tcp_transport){.job = job ? job : &m->transport, .net = n, .shm.file = -1};
    m->transport = (struct transport){.ops = &TCP_OPS, .wakes = WAKES_DATA};
    m->transport.all = (struct comm){.transport = &m->transport, .size = size};
    return m;
}

static int open_group(struct transport **out, const hvd_socket_group *g, struct transport *job,
                      const int *ranks, const struct transport_config *config, hvd_error *err) {
    if (job->ops != &TCP_OPS || g->number <= 0 || g->size <= 0)
        return error_set(err, HVD_INVALID,
                         "group %d of %d ranks: expected numbers above 0, and a job over tcp",
                         g->number, g->size);
    struct net *net = self(job)->net;
    struct tcp_transport *m = new_transport(net, job, g->size, err);
    int code = m ? open_all(m, ranks, job->layout.host_of, g->number, config, err) : HVD_NO_MEMORY;
    *out = code ? NULL : &m->transport;
    if (code == HVD_NO_MEMORY && !(m && m->channel)) /* otherwise tcp_close tells the ranks */
        channel_over(net, (uint32_t)g->number, ranks, g->size);
    if (code && m) tcp_close(&m->transport, false);
    return code;
}

int transport_tcp_open(struct transport **out, const void *where, struct transport *job,
                       const int *job_ranks, const struct transport_config *config,
                       hvd_error *err) {
    if (job) return open_group(out, where, job, job_ranks, config, err);
    const hvd_sockets *s = where;
    struct net *n = NULL;
    HVD_TRY(net_open(&n, &CHANNELS, s->rank, s->size, s->data, s->messages, err));
    struct tcp_transport *m = new_transport(n, NULL, s->size, err);
    if (!m) return net_close(n, false), err->code;
    m->transport.patience.timeout = config->timeout;
    *out = &m->transport; /* during the call, too, for the child of a fork by another thread */
    int code = open_all(m, NULL, s->lowest, 0, config, err);
    if (code) *out = NULL, tcp_close(&m->transport, false);
    return code;
}
