#define _GNU_SOURCE
#include "transport/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* IOVS: parts of one sendmsg call, two for each frame; chosen, not measured. */
enum { HEAD = sizeof(struct frame_head), IOVS = 32 };

/* ---- frames ---- */

void frames_add(struct frames *q, struct frame *p) {
    p->next = NULL;
    *(q->first ? q->last : &q->first) = p;
    q->last = &p->next;
}

struct frame *frames_take(struct frames *q, int from) {
    struct frame **at = &q->first, *p;
    while (*at && from >= 0 && (*at)->from != from) at = &(*at)->next;
    if (!(p = *at)) return NULL;
    *at = p->next;
    if (!p->next) q->last = at;
    return p;
}

static void frames_remove(struct frames *q, struct frame *p) {
    struct frame **at = &q->first;
    while (*at && *at != p) at = &(*at)->next;
    if (!*at) return;
    *at = p->next;
    if (!p->next) q->last = at;
}

void frame_free(struct frame *p) {
    if (p) free(p->data);
    free(p);
}

struct frame *frame_new(int from, size_t size) {
    struct frame *p = malloc(sizeof *p);
    if (p)
        *p = (struct frame){.from = from, .head.bytes = (uint32_t)size, .data = malloc(size + 1)};
    if (p && p->data) return p;
    frame_free(p);
    return NULL;
}

void frames_drain(struct frames *q) {
    for (struct frame *p; (p = frames_take(q, -1));) frame_free(p);
}

/* ---- opening and closing ---- */

/* Limits the time between the kernel's retransmissions to 2 s, so the link works again within 2 s
 * after a network failure. By default the kernel doubles this time at each try, so after a long
 * failure the link would stay dead for as long again (kernels before 6.15 have no TCP_RTO_MAX_MS).
 * Also keeps the kernel from closing the connection, because the negotiation's watch decides which
 * ranks are lost. */
static void try_often(int file) {
    enum { TCP_RTO_MAX_MS = 44 /* from linux/tcp.h */, EVERY = 2000, A_DAY = 24 * 3600 * 1000 };
    if (!setsockopt(file, IPPROTO_TCP, TCP_RTO_MAX_MS, &(int){EVERY}, sizeof(int)))
        setsockopt(file, IPPROTO_TCP, TCP_USER_TIMEOUT, &(int){A_DAY}, sizeof(int));
}

void link_open(struct link *l, int file) {
    int on = 1;
    *l = (struct link){.file = file, .readable = true, .writable = true};
    /* fails harmlessly if the stream is not TCP */
    setsockopt(file, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    try_often(file);
    fcntl(file, F_SETFL, fcntl(file, F_GETFL) | O_NONBLOCK);
    fcntl(file, F_SETFD, FD_CLOEXEC);
}

void link_close(struct link *l) {
    for (struct frame *p; (p = frames_take(&l->out, -1));)
        if (p->own) free(p);
    frame_free(l->early);
    if (l->file >= 0) close(l->file);
    *l = (struct link){.file = -1, .ended = true, .mute = true};
}

/* ---- errors ---- */

/* Handles the errno of a failed call. Sets *ready to false if the socket was not ready. Sets *over
 * if nothing more can move in this direction. Either the peer has ended: reading the stream will
 * report this end. Or there is an error on this rank's side: l->error keeps it. */
static void note_error(struct link *l, bool *ready, bool *over) {
    static const int ENDS[] = {EPIPE,        ECONNRESET,  ECONNABORTED, ETIMEDOUT,
                               EHOSTUNREACH, ENETUNREACH, EHOSTDOWN,    ENETDOWN};
    if (errno == EINTR) return;
    if (errno == EAGAIN || errno == EWOULDBLOCK) {
        *ready = false;
    } else if (errno == ENOBUFS || errno == ENOMEM) {
        l->starved = true;
    } else {
        *over = true;
        for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++)
            if (errno == ENDS[i]) return;
        l->error = errno;
    }
}

void link_refuse(struct link *l) {
    l->ended = true;
    l->error = EPROTO;
}

/* ---- sending ---- */

static int list_unsent(struct iovec *v, const struct frames *q) {
    int n = 0;
    for (struct frame *p = q->first; p && n + 2 <= IOVS; p = p->next) {
        size_t body = p->moved > HEAD ? p->moved - HEAD : 0;
        if (p->moved < HEAD) v[n++] = (struct iovec){(char *)&p->head + p->moved, HEAD - p->moved};
        if (p->head.bytes > body) v[n++] = (struct iovec){p->data + body, p->head.bytes - body};
    }
    return n;
}

static void complete_frames(struct link *l, size_t moved, struct link_owner owner) {
    for (struct frame *p; (p = l->out.first);) {
        size_t left = HEAD + p->head.bytes - p->moved;
        if (moved < left) {
            p->moved += moved;
            return;
        }
        moved -= left;
        frames_take(&l->out, -1);
        p->complete = true;
        if (p->own)
            free(p);
        else if (owner.sent)
            owner.sent(owner.arg, p);
    }
}

void link_push(struct link *l, struct link_owner owner) {
    while (l->out.first && l->writable && !l->mute && !l->starved) {
        struct iovec v[IOVS];
        struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)list_unsent(v, &l->out)};
        ssize_t sent = sendmsg(l->file, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0)
            complete_frames(l, (size_t)sent, owner);
        else
            note_error(l, &l->writable, &l->mute);
    }
}

void link_send(struct link *l, struct frame *p) {
    frames_add(&l->out, p);
    if (l->out.first == p) link_push(l, (struct link_owner){0}); /* no other frame waits */
}

void link_forget(struct link *l, struct frame *p) {
    if (p->complete) return;
    struct frame *copy = p->moved ? malloc(sizeof *copy + p->head.bytes) : NULL;
    if (copy) {
        size_t body = p->moved > HEAD ? p->moved - HEAD : 0;
        *copy = *p;
        copy->data = (char *)(copy + 1);
        copy->own = true;
        memcpy(copy->data + body, p->data + body, p->head.bytes - body);
        l->out.first = copy; /* only the first frame of a queue can be partly sent */
        if (!copy->next) l->out.last = &copy->next;
    } else {
        frames_remove(&l->out, p);
        if (!p->moved) return;
        shutdown(l->file, SHUT_WR);
        l->mute = true;
        l->error = ENOMEM;
    }
}

/* ---- receiving ---- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Moves up to `most` bytes from the read-ahead buffer to `to` (NULL: drops them) and counts them in
 * `arrived`. */
static void copy_ahead(struct link *l, char *to, size_t most) {
    size_t n = least(most, l->end - l->at);
    if (to && n) memcpy(to, l->ahead + l->at, n);
    l->at += n;
    l->arrived += n;
}

static void finish_frame(struct link *l, struct link_owner owner) {
    owner.arrived(owner.arg, l);
    l->arrived = 0;
    l->begun = false;
    l->into = NULL;
    l->frame = NULL;
    l->early = NULL;
}

/* Handles the bytes in the read-ahead buffer. Returns false if the link must stop reading. */
static bool take_ahead(struct link *l, struct link_owner owner) {
    for (;;) {
        if (l->arrived < HEAD) copy_ahead(l, (char *)&l->head + l->arrived, HEAD - l->arrived);
        if (l->arrived < HEAD) return true;
        if (!l->begun && l->head.bytes > LINK_LONGEST) link_refuse(l);
        if (l->ended) return false;
        if (!l->begun) l->begun = owner.begin(owner.arg, l);
        if (!l->begun) return false;
        size_t body = l->arrived - HEAD;
        copy_ahead(l, l->into ? l->into + body : NULL, l->head.bytes - body);
        if (l->arrived < HEAD + l->head.bytes) return true;
        finish_frame(l, owner);
    }
}

/* Reads the rest of the frame into the frame's memory, and the bytes after the frame into the
 * read-ahead buffer. */
static void read_some(struct link *l) {
    struct iovec v[2] = {{NULL, 0}, {l->ahead, sizeof l->ahead}};
    bool direct = l->begun && l->into;
    if (direct)
        v[0] = (struct iovec){l->into + (l->arrived - HEAD), HEAD + l->head.bytes - l->arrived};
    ssize_t n = readv(l->file, direct ? v : v + 1, direct ? 2 : 1);
    l->at = l->end = 0;
    if (n < 0) {
        note_error(l, &l->readable, &l->ended);
    } else if (n == 0) {
        l->ended = true;
    } else {
        size_t straight = least((size_t)n, v[0].iov_len);
        l->arrived += straight;
        l->end = (size_t)n - straight;
        if ((size_t)n < v[0].iov_len + v[1].iov_len && !l->hung) l->readable = false;
    }
}

/* Asks the kernel to wake this rank not for each packet, but only when the rest of the frame, or a
 * large part of the rest, has arrived. While 1 MB moved at 200 Mbit/s between two emulated hosts, a
 * rank used 7.7 instead of 13.1 ms of CPU time. SHORT and MOST are chosen, not measured. */
static void want_rest(struct link *l) {
    enum { SHORT = 8 << 10, MOST = 64 << 10 };
    size_t rest = l->begun ? HEAD + l->head.bytes - l->arrived : 0;
    int low = rest < SHORT ? 1 : (int)least(rest, MOST);
    if (low != l->low) setsockopt(l->file, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
    l->low = low;
}

void link_pull(struct link *l, struct link_owner owner) {
    while (!l->ended && take_ahead(l, owner) && l->readable && !l->starved) read_some(l);
    if (!l->ended) want_rest(l);
}
