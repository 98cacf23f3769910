#define _POSIX_C_SOURCE 200809L /* for F_DUPFD_CLOEXEC */
#include "transport/net.h"

#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- frames ---- */

struct source {
    struct net *net;
    int peer;
    enum stream stream;
};

static bool begin_frame(void *arg, struct link *l) {
    const struct source *s = arg;
    if (l->head.kind == FRAME_FAREWELL) return true;
    bool data = l->head.kind == FRAME_DATA;
    if (l->head.kind > FRAME_FAREWELL || data != (s->stream == STREAM_DATA)) {
        link_refuse(l);
        return false;
    }
    return s->net->reader->begin(s->net, s->peer, l);
}

static void end_frame(void *arg, struct link *l) {
    const struct source *s = arg;
    if (l->head.kind != FRAME_FAREWELL) return s->net->reader->arrived(s->net, s->peer, l);
    s->net->peers[s->peer].left = true;
    s->net->reader->changed(s->net);
}

static void note_sent(void *arg, const struct frame *p) {
    const struct source *s = arg;
    s->net->reader->sent(s->net, p);
}

static struct link_owner owner_of(struct source *s) {
    return (struct link_owner){begin_frame, end_frame, note_sent, s};
}

static void note_end(struct net *n, int rank) {
    struct peer *p = &n->peers[rank];
    if (p->given_up || p->left) return;
    bool caused = !p->failed || p->fate != FATE_DIED;
    if (!caused && clock_now() - p->ended[STREAM_MESSAGES] < CAUSE_COMES_FIRST) return;
    p->given_up = true;
    n->reader->lost(n, rank);
}

bool net_is_cut(const struct net *n, int peer) {
    /* The peer's stream ended long ago. If the peer had died, this rank would know it by now. */
    double ended = n->peers[peer].ended[STREAM_DATA];
    return ended > 0 && clock_now() - ended > 3 * CAUSE_COMES_FIRST;
}

/* Records an error on this rank's side of the link. The peer can't detect this error. */
static void note_error(struct net *n, int peer, const struct link *l) {
    if (!l->error || n->error) return;
    n->error = l->error;
    n->with = peer;
    n->reader->changed(n);
}

void net_pull(struct net *n, int peer, enum stream stream) {
    struct source s = {n, peer, stream};
    struct peer *p = &n->peers[peer];
    struct link *l = &p->links[stream];
    link_pull(l, owner_of(&s));
    note_error(n, peer, l);
    if (l->ended && !l->error && p->ended[stream] <= 0) p->ended[stream] = clock_now();
    if (p->ended[STREAM_MESSAGES] > 0) note_end(n, peer);
}

void net_send(struct net *n, int peer, enum stream stream, struct frame *p) {
    struct link *l = &n->peers[peer].links[stream];
    link_send(l, p);
    note_error(n, peer, l);
}

static void handle(struct net *n, const struct epoll_event *e) {
    int peer = (int)(e->data.u64 / STREAMS);
    enum stream stream = (enum stream)(e->data.u64 % STREAMS);
    struct link *l = &n->peers[peer].links[stream];
    bool hung = e->events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    if (hung) l->hung = true;
    if (hung || e->events & EPOLLIN) l->readable = true;
    if (hung || e->events & EPOLLOUT) l->writable = true;
    net_pull(n, peer, stream);
    link_push(l, owner_of(&(struct source){n, peer, stream}));
    note_error(n, peer, l);
}

static void try_again(struct net *n) {
    for (int i = 0; i < n->size * STREAMS; i++) {
        struct link *l = &n->peers[i / STREAMS].links[i % STREAMS];
        if (!l->starved) continue;
        l->starved = false;
        handle(n, &(struct epoll_event){.data.u64 = (uint64_t)i});
    }
}

/* Events are edge-triggered: a stream that can't be read until a receive is posted must not wake
 * the thread again and again. */
void net_look(struct net *n) {
    enum { EVENTS = 64 };
    struct epoll_event events[EVENTS];
    int found;
    try_again(n);
    do {
        found = epoll_wait(n->epoll, events, EVENTS, 0);
        for (int i = 0; i < found; i++) handle(n, &events[i]);
    } while (found == EVENTS);
    for (int r = 0; r < n->size; r++)
        if (n->peers[r].ended[STREAM_MESSAGES] > 0) note_end(n, r);
}

bool net_tries_again(const struct net *n) {
    for (int r = 0; r < n->size; r++)
        for (int stream = 0; stream < STREAMS; stream++)
            if (n->peers[r].links[stream].starved) return true;
    return false;
}

void net_look_seldom(struct net *n) {
    /* Seconds between looks, each a system call; a stream's end is noticed up to this much late. */
    static const double SELDOM = 10e-3;
    double now = clock_now();
    if (now - n->looked < SELDOM) return;
    n->looked = now;
    net_look(n);
}

/* Records the end of the peer's streams now, because a child of the dead process may still hold the
 * streams open. */
void net_bury(struct net *n, int peer, enum fate fate) {
    struct peer *p = &n->peers[peer];
    net_look(n);
    if (!p->given_up) p->fate = fate;
    if (p->ended[STREAM_MESSAGES] <= 0) p->ended[STREAM_MESSAGES] = clock_now();
    note_end(n, peer);
}

bool net_sends(const struct net *n) {
    for (int r = 0; r < n->size; r++)
        for (int stream = 0; stream < STREAMS; stream++) {
            const struct link *l = &n->peers[r].links[stream];
            if (l->out.first && !l->mute && !n->peers[r].given_up) return true;
        }
    return false;
}

/* ---- opening and closing ---- */

static void watch_socket(struct net *n, int rank, enum stream stream, int given, hvd_error *err) {
    int file = fcntl(given, F_DUPFD_CLOEXEC, 0), why = errno;
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET,
                            .data.u64 = (uint64_t)rank * STREAMS + stream};
    link_open(&n->peers[rank].links[stream], file);
    if (file < 0)
        error_set(err, HVD_NO_MEMORY, "no file descriptor for the socket to rank %d: %s", rank,
                  strerror(why));
    else if (epoll_ctl(n->epoll, EPOLL_CTL_ADD, file, &e))
        error_set(err, HVD_INVALID, "the socket to rank %d (descriptor %d) can't be used: %s", rank,
                  given, strerror(errno));
}

static int watch_sockets(struct net *n, const int *data, const int *messages, hvd_error *err) {
    hvd_error why = {.code = HVD_OK};
    for (int r = 0; r < n->size; r++) {
        n->peers[r].links[STREAM_DATA].file = n->peers[r].links[STREAM_MESSAGES].file = -1;
        if (r == n->rank) continue;
        watch_socket(n, r, STREAM_DATA, data[r], &why);
        watch_socket(n, r, STREAM_MESSAGES, messages[r], &why);
    }
    if (why.code && err) *err = why;
    return why.code;
}

int net_open(struct net **out, const struct net_reader *reader, int rank, int size, const int *data,
             const int *messages, hvd_error *err) {
    if (size <= 0 || rank < 0 || rank >= size)
        return error_set(
            err, HVD_INVALID,
            "rank %d of %d ranks: expected a rank from 0 to the number of ranks minus 1", rank,
            size);
    struct net *n = calloc(1, sizeof *n);
    struct peer *peers = calloc((size_t)size, sizeof *peers);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (!n || !peers || epoll < 0) {
        free(n);
        free(peers);
        if (epoll >= 0) close(epoll);
        return error_set(err, HVD_NO_MEMORY, "no memory or file descriptors for %d ranks", size);
    }
    *n = (struct net){.reader = reader, .rank = rank, .size = size, .peers = peers, .epoll = epoll};
    mutex_init(&n->lock);
    int code = watch_sockets(n, data, messages, err);
    if (code)
        net_close(n, false);
    else
        *out = n;
    return code;
}

static bool all_quiet(const struct net *n) {
    for (int r = 0; r < n->size; r++) {
        const struct peer *p = &n->peers[r];
        if (r != n->rank && !p->left && !p->given_up && !p->links[STREAM_MESSAGES].ended)
            return false;
    }
    return true;
}

/* Keeps reading while it waits: if a socket is closed with unread bytes, the kernel discards the
 * bytes that it has not sent yet. */
static void wait_until(struct net *n, bool (*done)(const struct net *), double seconds) {
    static const double LOOK = 0.2e-3; /* seconds between two checks; chosen, not measured */
    for (double until = clock_now() + seconds;; clock_nap(LOOK)) {
        net_look(n);
        if (done(n) || clock_now() > until) return;
    }
}

static bool all_sent(const struct net *n) { return !net_sends(n); }

static void send_farewell(struct net *n) {
    for (int r = 0; r < n->size; r++) {
        struct frame *p = n->peers[r].links[STREAM_MESSAGES].mute ? NULL : malloc(sizeof *p);
        if (!p || r == n->rank) {
            free(p);
            continue;
        }
        *p = (struct frame){.head.kind = FRAME_FAREWELL, .own = true};
        net_send(n, r, STREAM_MESSAGES, p);
    }
}

void net_close_in_child(const struct net *n) {
    for (int r = 0; r < n->size; r++)
        for (int stream = 0; stream < STREAMS; stream++)
            if (r != n->rank) close(n->peers[r].links[stream].file);
}

void net_close(struct net *n, bool clean) {
    /* Seconds; chosen, not measured. A close takes this long if other ranks do not read. After a
     * failure other ranks may be dead, so the limit is short. */
    static const double TO_SEND = 5, TO_SEND_UNCLEAN = 0.2, TO_HEAR = 0.2;
    net_lock(n);
    /* no event makes net_look read a frame that arrived long ago and waited for a receive */
    for (int r = 0; r < n->size; r++)
        if (r != n->rank) net_pull(n, r, STREAM_DATA);
    if (clean) send_farewell(n);
    wait_until(n, all_sent, clean ? TO_SEND : TO_SEND_UNCLEAN);
    for (int r = 0; r < n->size; r++)
        for (int stream = 0; stream < STREAMS; stream++)
            if (r != n->rank) shutdown(n->peers[r].links[stream].file, SHUT_WR);
    wait_until(n, all_quiet, TO_HEAR);
    for (int r = 0; r < n->size; r++)
        for (int stream = 0; stream < STREAMS; stream++) link_close(&n->peers[r].links[stream]);
    n->reader->closed(n);
    net_unlock(n);
    close(n->epoll);
    mutex_destroy(&n->lock);
    free(n->peers);
    free(n);
}
