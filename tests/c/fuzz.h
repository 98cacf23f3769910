/* Functions for fuzzing. Each function gets any bytes, must handle the bytes or report an error,
 * and must not touch other memory.
 *
 * `make fuzz` chooses bytes by coverage (-DFUZZ=fuzz_wire or another function); test_fuzz.c mutates
 * valid bytes. A function aborts if a property is violated; sanitizers detect invalid accesses. */
#ifndef HVDLITE_FUZZ_H
#define HVDLITE_FUZZ_H

#include "negotiation/aggregate.h"
#include "negotiation/coordinator.h"
#include "shm/mailbox.h"
#include "transport/channel.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FUZZ_REQUIRE(condition) ((condition) ? (void)0 : abort())

/* ---- negotiation messages ---- */

enum { FUZZ_RANKS = 4 };

/* Rank 0 coordinates; rank 1 aggregates the reports of ranks 2 and 3 of its host. */
struct fuzz_job {
    struct coordinator *coordinator;
    struct tree trees[2]; /* the trees of ranks 0 and 1 */
    struct aggregate aggregate;
    double now;
    struct wire_writer up, out;
};

static inline void fuzz_job_open(struct fuzz_job *job) {
    static const int HOST_OF[FUZZ_RANKS] = {0, 1, 1, 1};
    const struct coordinator_config config = {
        .size = FUZZ_RANKS,
        .options = {.fusion_bytes = 1 << 20, .cache_capacity = 2, .bytes_ahead = 1 << 20}};
    hvd_error err;
    *job = (struct fuzz_job){.coordinator = coordinator_new(&config)};
    FUZZ_REQUIRE(job->coordinator);
    for (int r = 0; r < 2; r++)
        FUZZ_REQUIRE(tree_open(&job->trees[r], r, FUZZ_RANKS, HOST_OF, &err) == HVD_OK);
    aggregate_open(&job->aggregate, &job->trees[1]);
}

static inline void fuzz_job_close(struct fuzz_job *job) {
    aggregate_close(&job->aggregate);
    for (int r = 0; r < 2; r++) tree_close(&job->trees[r]);
    coordinator_free(job->coordinator);
    wire_free(&job->up);
    wire_free(&job->out);
}

/* Passes an item from another rank to the coordinator, as engine/negotiate.c does. */
static inline int fuzz_hear(struct fuzz_job *job, int from, const struct wire_item *item,
                            hvd_error *err) {
    struct coordinator *c = job->coordinator;
    const struct tree *tree = &job->trees[0];
    if (item->type > WIRE_LEAVE) return HVD_OK;
    HVD_TRY(tree_check(tree, from, item->rank, err));
    if (item->type == WIRE_LEAVE) coordinator_leave(c, item->rank, item->error.text);
    if (item->type == WIRE_REQUEST && item->id)
        return coordinator_resent(c, item->rank, &item->request, job->now, err);
    if (item->type == WIRE_REQUEST)
        return coordinator_request(c, item->rank, &item->request,
                                   item->request.failed ? item->error.text : "", job->now, err);
    if (item->type == WIRE_LEAVE) return HVD_OK;
    int many = item->type == WIRE_HITS ? tree->many[item->rank] : 1;
    for (int i = 0; i < many; i++)
        HVD_TRY(coordinator_hit(c, tree->ranks[tree->at[item->rank] + i], item->id, job->now,
                                &job->out, err));
    return HVD_OK;
}

/* Passes an item to rank 1's aggregate, as engine/follow.c does. */
static inline int fuzz_aggregate(struct fuzz_job *job, int from, const struct wire_item *item,
                                 hvd_error *err) {
    return aggregate_take(&job->aggregate, from, item, job->now, &job->up, err);
}

/* Checks that the coordinator's output can be read. */
static inline void fuzz_read_all(const struct wire_writer *out) {
    struct wire_reader r;
    struct wire_item item;
    bool more = out->size != 0;
    hvd_error err;
    if (more) FUZZ_REQUIRE(wire_open(&r, out->data, out->size, &err) == HVD_OK);
    while (more) FUZZ_REQUIRE(wire_next(&r, &item, &more, &err) == HVD_OK);
    if (out->size) wire_reader_free(&r);
}

typedef int fuzz_hears(struct fuzz_job *job, int from, const struct wire_item *item,
                       hvd_error *err);

static inline int fuzz_message(struct fuzz_job *job, int from, const uint8_t *data, size_t size,
                               fuzz_hears *hears) {
    struct wire_reader r;
    struct wire_item item;
    bool more = true;
    hvd_error err;
    int code = wire_open(&r, data, size, &err);
    while (!code && !(code = wire_next(&r, &item, &more, &err)) && more)
        if ((code = hears(job, from, &item, &err))) break;
    wire_reader_free(&r);
    return code;
}

/* Checks that rank 1's reports can be read, and concern only rank 1 and ranks below it in the
 * tree. */
static inline void fuzz_pass_up(struct fuzz_job *job) {
    hvd_error err;
    FUZZ_REQUIRE(aggregate_late(&job->aggregate, job->now, &job->up, &err) == HVD_OK);
    fuzz_read_all(&job->up);
    if (job->up.size) fuzz_message(job, 1, job->up.data, job->up.size, fuzz_hear);
    wire_reset(&job->up);
}

static inline void fuzz_decide(struct fuzz_job *job) {
    hvd_error err;
    FUZZ_REQUIRE(coordinator_decide(job->coordinator, job->now, NULL, &job->out, &err) == HVD_OK);
    fuzz_read_all(&job->out);
    wire_reset(&job->out);
    coordinator_finished(job->coordinator, job->now);
}

/* The input is a list of messages: two bytes of length, one byte for the sender, then the
 * message. */
static inline int fuzz_wire(const uint8_t *data, size_t size) {
    struct fuzz_job job;
    fuzz_job_open(&job);
    while (size >= 3) {
        size_t length = data[0] | (size_t)data[1] << 8;
        int from = data[2] % FUZZ_RANKS;
        data += 3;
        size -= 3;
        if (length > size) length = size;
        job.now += AGGREGATE_SECONDS / 2;
        fuzz_message(&job, from, data, length, from ? fuzz_aggregate : fuzz_hear);
        fuzz_pass_up(&job);
        fuzz_decide(&job);
        data += length;
        size -= length;
    }
    fuzz_job_close(&job);
    return 0;
}

/* ---- a mailbox ---- */

/* Messages in flight: their lengths; how many have been sent and received. */
struct fuzz_mail {
    size_t length[64];
    size_t sent, received;
    bool damaged;
};

static inline unsigned char fuzz_byte(size_t message, size_t at) {
    return (unsigned char)(message * 31 + at);
}

static inline int fuzz_send(struct mailbox *box, struct mail_out *out, struct fuzz_mail *m,
                            size_t length, hvd_error *err) {
    static unsigned char data[2 * MAILBOX_BYTES];
    if (m->sent == sizeof m->length / sizeof *m->length) return HVD_OK;
    for (size_t i = 0; i < length; i++) data[i] = fuzz_byte(m->sent, i);
    m->length[m->sent++] = length;
    return mailbox_send(box, out, data, length, err);
}

/* Receives. Undamaged messages must arrive complete and in order. */
static inline int fuzz_receive(struct mailbox *box, struct mail_in *in, struct fuzz_mail *m,
                               hvd_error *err) {
    void *data;
    size_t size;
    HVD_TRY(mailbox_receive(box, in, &data, &size, err));
    if (data && !m->damaged) {
        FUZZ_REQUIRE(m->received < m->sent && size == m->length[m->received]);
        for (size_t i = 0; i < size; i++)
            FUZZ_REQUIRE(((unsigned char *)data)[i] == fuzz_byte(m->received, i));
        m->received++;
    }
    free(data);
    return HVD_OK;
}

/* Damages the shared memory, as another process could. */
static inline void fuzz_damage(struct mailbox *box, struct fuzz_mail *m, unsigned way,
                               uint64_t value) {
    m->damaged = true;
    if (way == 0) atomic_store(&box->written, value);
    if (way == 1) atomic_store(&box->read, value);
    if (way == 2) atomic_fetch_add(&box->written, value % 16);
    if (way == 3) box->bytes[value % MAILBOX_BYTES] ^= (unsigned char)(value >> 32 | 1);
}

/* The input is a list of operations: one byte for the kind, eight bytes for a number. An error ends
 * the mailbox, as it would end the job. */
static inline int fuzz_mailbox(const uint8_t *data, size_t size) {
    struct mailbox *box = aligned_alloc(64, sizeof *box);
    struct mail_out out = {0};
    struct mail_in in = {0};
    struct fuzz_mail m = {0};
    hvd_error err;
    int code = HVD_OK;
    if (!box) return 0;
    memset(box, 0, sizeof *box);
    for (; !code && size >= 9; data += 9, size -= 9) {
        uint64_t value;
        memcpy(&value, data + 1, sizeof value);
        if (data[0] < 96)
            code = fuzz_send(box, &out, &m, value % (2 * MAILBOX_BYTES), &err);
        else if (data[0] < 128)
            code = fuzz_send(box, &out, &m, value % 64, &err);
        else if (data[0] < 160)
            code = mailbox_flush(box, &out, &err);
        else if (data[0] < 248)
            code = fuzz_receive(box, &in, &m, &err);
        else
            fuzz_damage(box, &m, data[0] % 4, value);
    }
    FUZZ_REQUIRE(!code || m.damaged);
    mail_out_free(&out);
    mail_in_free(&in);
    free(box);
    return 0;
}

/* ---- streams ---- */

static inline void fuzz_ignore(void *arg) { (void)arg; }
static inline void fuzz_ignore_peer(void *arg, int peer) { (void)arg, (void)peer; }

enum { FUZZ_POSTS = 16 };

struct fuzz_streams {
    int ends[STREAMS]; /* the peer's ends of the streams */
    struct net *net;
    struct channel *channel;
    void *posted[FUZZ_POSTS];
    int n;
};

static inline bool fuzz_streams_open(struct fuzz_streams *s) {
    struct channel_owner owner = {fuzz_ignore, fuzz_ignore_peer, NULL};
    int own[STREAMS][2] = {{-1, -1}, {-1, -1}};
    hvd_error err;
    for (int stream = 0; stream < STREAMS; stream++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return false;
        s->ends[stream] = pair[1];
        own[stream][1] = pair[0];
    }
    int code = net_open(&s->net, &CHANNELS, 0, 2, own[STREAM_DATA], own[STREAM_MESSAGES], &err);
    for (int stream = 0; stream < STREAMS; stream++) close(own[stream][1]);
    return !code && !channel_open(&s->channel, s->net, 0, owner, &err);
}

/* Posts a receive into a buffer of exactly `size` bytes. */
static inline void fuzz_post(struct fuzz_streams *s, size_t size) {
    struct frame *p;
    hvd_error err;
    if (s->n == FUZZ_POSTS || !(s->posted[s->n] = malloc(size ? size : 1))) return;
    channel_irecv(s->channel, s->posted[s->n++], size, 1, &p, &err);
}

static inline void fuzz_do(struct fuzz_streams *s, unsigned what, const uint8_t *data, size_t n) {
    struct frame *p = NULL;
    if (what < 6 && n) FUZZ_REQUIRE(write(s->ends[what / 4], data, n) == (ssize_t)n);
    if (what == 6) fuzz_post(s, n);
    if (what == 7 && n % 4 == 0) channel_abandon(s->channel);
    if (what == 7) p = channel_take(s->channel, -1);
    if (p) free(p->data);
    free(p);
    net_look(s->net);
}

/* The input is a list: one byte for the action, two bytes of length, then the bytes that the peer
 * sends. */
static inline int fuzz_streams(const uint8_t *data, size_t size) {
    struct fuzz_streams s = {.n = 0};
    if (!fuzz_streams_open(&s)) return 0;
    while (size >= 3) {
        unsigned what = data[0] % 8;
        size_t length = data[1] | (size_t)(data[2] % 16) << 8;
        data += 3;
        size -= 3;
        if (what < 6 && length > size) length = size;
        fuzz_do(&s, what, data, length);
        data += what < 6 ? length : 0;
        size -= what < 6 ? length : 0;
    }
    s.net->peers[1].left = true; /* closing must not wait for a farewell */
    channel_close(s.channel);
    net_close(s.net, false);
    for (int stream = 0; stream < STREAMS; stream++) close(s.ends[stream]);
    while (s.n) free(s.posted[--s.n]);
    return 0;
}

#ifdef FUZZ /* the entry of libFuzzer */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) { return FUZZ(data, size); }
#endif

#endif
