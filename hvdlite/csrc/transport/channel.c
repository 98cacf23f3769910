#include "transport/channel.h"

#include "base/os.h"

#include <stdlib.h>
#include <string.h>

static void ring_owner(const struct channel *c) {
    if (c->state == CHANNEL_OPEN) c->owner.ring(c->owner.arg);
}

/* ---- opening and closing ---- */

static void drop_received(struct channel *c) {
    for (int r = 0; c->kept && r < c->net->size; r++) frames_drain(&c->kept[r]);
    frames_drain(&c->inbox);
    free(c->posted);
    free(c->kept);
    c->posted = NULL;
    c->kept = NULL;
}

/* Finds or makes the group's channel. NULL: memory is short. */
static struct channel *channel_of(struct net *n, uint32_t group) {
    struct channel *c = n->channels;
    while (c && c->group != group) c = c->next;
    if (c) return c;
    c = calloc(1, sizeof *c);
    if (!c) return NULL;
    *c = (struct channel){.next = n->channels, .net = n, .group = group};
    c->posted = calloc((size_t)n->size, sizeof *c->posted);
    c->kept = calloc((size_t)n->size, sizeof *c->kept);
    if (c->posted && c->kept) return n->channels = c;
    drop_received(c);
    free(c);
    return NULL;
}

int channel_open(struct channel **out, struct net *n, uint32_t group, struct channel_owner owner,
                 hvd_error *err) {
    struct channel *c = channel_of(n, group);
    if (!c) return error_set(err, HVD_NO_MEMORY, "no memory for a group of ranks");
    if (c->state != CHANNEL_EARLY)
        return error_set(err, HVD_INVALID,
                         "group number %u: expected a number that this job has not used", group);
    c->state = CHANNEL_OPEN;
    c->owner = owner;
    n->nopen++;
    for (int r = 0; r < n->size; r++) {
        if (r == n->rank) continue;
        if (n->peers[r].given_up) owner.lost(owner.arg, r);
        /* the stream may hold a frame that waited for this channel to open */
        net_pull(n, r, STREAM_DATA);
    }
    *out = c;
    return HVD_OK;
}

/* The channel stays in the net's list, so that later frames of its group are still dropped. */
void channel_close(struct channel *c) {
    channel_abandon(c);
    drop_received(c);
    for (struct frame *p; (p = c->frames);) {
        c->frames = p->all;
        free(p);
    }
    c->free = NULL;
    c->state = CHANNEL_CLOSED;
    c->net->nopen--;
}

static void free_all(struct net *n) {
    for (struct channel *c; (c = n->channels);) {
        n->channels = c->next;
        drop_received(c);
        free(c);
    }
}

/* ---- transfers ---- */

static struct frame *new_frame(struct channel *c, void *data, size_t bytes, hvd_error *err) {
    struct frame *p = c->free;
    if (p) {
        c->free = p->next;
    } else {
        p = calloc(1, sizeof *p);
        if (!p) {
            error_set(err, HVD_NO_MEMORY, "no memory for a transfer");
            return NULL;
        }
        p->all = c->frames;
        c->frames = p;
    }
    *p = (struct frame){
        .all = p->all, .head = {(uint32_t)bytes, c->group, FRAME_DATA}, .data = data};
    return p;
}

void channel_done(struct channel *c, struct frame *p) {
    p->next = c->free;
    c->free = p;
}

static void drop_complete(struct channel *c, struct frame **p) {
    if (!(*p)->complete) return;
    channel_done(c, *p);
    *p = NULL;
}

int channel_isend(struct channel *c, const void *data, size_t bytes, int to, struct frame **p,
                  hvd_error *err) {
    *p = new_frame(c, (void *)(uintptr_t)data, bytes, err);
    if (!*p) return err->code;
    net_send(c->net, to, STREAM_DATA, *p);
    drop_complete(c, p);
    return HVD_OK;
}

/* Returns false if the frame and its receive have different sizes. Then the channel fails, because
 * all later frames would match the wrong receives. */
static bool check_size(struct channel *c, int peer, const struct frame *p, size_t bytes) {
    if (bytes == p->head.bytes) return true;
    if (!c->cut) {
        c->cut = peer + 1;
        c->cut_bytes = bytes;
        c->cut_expected = p->head.bytes;
    }
    ring_owner(c);
    return false;
}

/* If a frame began to arrive before its receive was posted: copies the frame's bytes from the
 * channel's memory to the receive's memory, where the rest then arrives. False: no such frame. */
static bool redirect_frame(struct channel *c, int peer, struct frame *p) {
    struct link *l = &c->net->peers[peer].links[STREAM_DATA];
    if (!l->begun || !l->early || l->head.group != c->group) return false;
    if (!check_size(c, peer, p, l->head.bytes)) return true;
    memcpy(p->data, l->early->data, l->arrived - sizeof l->head);
    frame_free(l->early);
    l->early = NULL;
    l->frame = p;
    l->into = p->data;
    return true;
}

int channel_irecv(struct channel *c, void *data, size_t bytes, int from, struct frame **p,
                  hvd_error *err) {
    *p = new_frame(c, data, bytes, err);
    if (!*p) return err->code;
    struct frame *kept = c->posted[from].first ? NULL : frames_take(&c->kept[from], -1);
    if (kept && check_size(c, from, *p, kept->head.bytes)) {
        memcpy(data, kept->data, bytes);
        (*p)->complete = true;
    } else if (!kept && (c->posted[from].first || !redirect_frame(c, from, *p))) {
        frames_add(&c->posted[from], *p);
    }
    frame_free(kept);
    if (!(*p)->complete) net_pull(c->net, from, STREAM_DATA);
    drop_complete(c, p);
    return HVD_OK;
}

void channel_abandon(struct channel *c) {
    for (int r = 0; c->posted && r < c->net->size; r++) {
        struct link *l = &c->net->peers[r].links[STREAM_DATA];
        c->posted[r].first = NULL;
        if (!l->begun || !l->frame || l->head.group != c->group) continue;
        l->frame = NULL;
        l->into = NULL; /* the rest of the frame is dropped */
    }
    for (int r = 0; r < c->net->size; r++) {
        struct link *l = &c->net->peers[r].links[STREAM_DATA];
        for (struct frame *p = l->out.first, *next; p; p = next) {
            next = p->next;
            if (!p->own && p->head.group == c->group) link_forget(l, p);
        }
    }
}

/* ---- messages ---- */

static int send_frame(struct net *n, uint32_t group, enum frame_kind kind, int to, const void *data,
                      size_t size, hvd_error *err) {
    if (n->peers[to].links[STREAM_MESSAGES].mute) return HVD_OK; /* the rank has died or left */
    struct frame *p = size <= LINK_LONGEST ? malloc(sizeof *p + size) : NULL;
    if (!p) return error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes", size);
    *p = (struct frame){.head = {(uint32_t)size, group, kind}, .own = true};
    p->data = (char *)(p + 1);
    if (size) memcpy(p->data, data, size);
    net_send(n, to, STREAM_MESSAGES, p);
    return HVD_OK;
}

int channel_send(struct channel *c, int to, const void *data, size_t size, hvd_error *err) {
    return send_frame(c->net, c->group, FRAME_MESSAGE, to, data, size, err);
}

void channel_over(struct net *n, uint32_t group, const int *peers, int size) {
    net_lock(n);
    const struct channel *c = n->channels;
    while (c && c->group != group) c = c->next;
    /* The rank that failed first sends FRAME_OVER to all ranks. If a FRAME_OVER of this rank
     * arrived earlier, the receiver would blame this rank. */
    bool told = group && c && c->over;
    for (int i = 0; i < size && !told; i++)
        if (peers[i] >= 0 && peers[i] < n->size && peers[i] != n->rank)
            send_frame(n, group, FRAME_OVER, peers[i], NULL, 0, NULL);
    net_unlock(n);
}

struct frame *channel_take(struct channel *c, int from) { return frames_take(&c->inbox, from); }

int channel_cut(const struct net *n, int peer, size_t bytes, size_t expected, hvd_error *err) {
    return error_set(err, HVD_INTERNAL,
                     "rank %d sent %zu bytes, but rank %d expected %zu: is the version of hvdlite "
                     "the same on each rank?",
                     peer, bytes, n->rank, expected);
}

/* Returns true if the peer has sent its farewell and this rank has taken all of the peer's
 * messages. */
static bool has_left(const struct channel *c, int peer) {
    const struct frame *p = c->inbox.first;
    while (p && p->from != peer) p = p->next;
    return !p && c->net->peers[peer].left;
}

int channel_check(const struct channel *c, int from, double patience, hvd_error *err) {
    if (c->cut) return channel_cut(c->net, c->cut - 1, c->cut_bytes, c->cut_expected, err);
    if (c->net->starved)
        return error_set(err, HVD_NO_MEMORY, "rank %d has no memory for data of other ranks",
                         c->net->rank);
    if (c->net->error)
        return error_set(err, HVD_TRANSPORT, "rank %d can't exchange data with rank %d: %s",
                         c->net->rank, c->net->with, strerror(c->net->error));
    if (from >= 0 && has_left(c, from)) {
        error_set(err, HVD_RANK_LEFT, "rank %d has left the job, so it can't open a group", from);
        return error_blame(err, from);
    }
    if (!c->over || clock_now() - c->over_since < patience) return HVD_OK;
    error_set(err, HVD_RANK_LEFT,
              "rank %d could not open or use a group of ranks: see that rank's error", c->over - 1);
    return error_blame(err, c->over - 1);
}

/* ---- functions that the net calls ---- */

static void ring_all(struct net *n) {
    for (struct channel *c = n->channels; c; c = c->next) ring_owner(c);
}

static bool report_starved(struct net *n) {
    n->starved = true;
    ring_all(n);
    return false;
}

static bool begin_early(struct net *n, int peer, struct link *l) {
    l->early = frame_new(peer, l->head.bytes);
    l->into = l->early ? l->early->data : NULL;
    return l->early || report_starved(n);
}

static bool begin_frame(struct net *n, int peer, struct link *l) {
    struct channel *c = channel_of(n, l->head.group);
    if (!c) return report_starved(n);
    if (c->state == CHANNEL_CLOSED || l->head.kind == FRAME_OVER) return true;
    if (l->head.kind == FRAME_MESSAGE) return begin_early(n, peer, l);
    struct frame *p = c->posted[peer].first;
    bool alone = c->state == CHANNEL_OPEN && n->nopen == 1;
    if (!p) return !alone && begin_early(n, peer, l);
    if (!check_size(c, peer, p, l->head.bytes)) return false;
    l->frame = frames_take(&c->posted[peer], -1);
    l->into = p->data;
    return true;
}

static void deliver_frame(struct net *n, int peer, struct link *l) {
    struct channel *c = channel_of(n, l->head.group);
    if (l->frame) l->frame->complete = true;
    if (l->early && c->state == CHANNEL_CLOSED)
        frame_free(l->early);
    else if (l->early)
        frames_add(l->head.kind == FRAME_DATA ? &c->kept[peer] : &c->inbox, l->early);
    if (l->head.kind == FRAME_OVER && !c->over) {
        c->over = peer + 1;
        c->over_since = clock_now();
    }
    if (l->head.kind == FRAME_OVER && !c->group) n->peers[peer].failed = true;
    ring_owner(c);
}

static void wake_sender(struct net *n, const struct frame *p) {
    ring_owner(channel_of(n, p->head.group));
}

static void report_lost_peer(struct net *n, int peer) {
    for (struct channel *c = n->channels; c; c = c->next)
        if (c->state == CHANNEL_OPEN) c->owner.lost(c->owner.arg, peer);
}

const struct net_reader CHANNELS = {
    .begin = begin_frame,
    .arrived = deliver_frame,
    .sent = wake_sender,
    .lost = report_lost_peer,
    .changed = ring_all,
    .closed = free_all,
};
