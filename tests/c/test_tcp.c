/* The transport over sockets: partial frames, receives posted late and in any order, several groups
 * on the same streams, ranks that leave or die. */
#define _GNU_SOURCE /* syscall */
#include "check.h"

#include "random.h"
#include "sockets.h"
#include "transport/channel.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { TINY = 1, BIG = 300007, MOST_FRAMES = 24 };

/* Both ends of the streams; this thread drives them in turn. */
struct ends {
    struct net *net[2];
    struct channel *channel[2];
    int rings[2], lost[2];
};

static void ring_0(void *arg) { ((struct ends *)arg)->rings[0]++; }
static void ring_1(void *arg) { ((struct ends *)arg)->rings[1]++; }
static void lost_0(void *arg, int peer) { ((struct ends *)arg)->lost[0] = 1 + peer; }
static void lost_1(void *arg, int peer) { ((struct ends *)arg)->lost[1] = 1 + peer; }

static void open_both(struct ends *e, struct channel *c[2], uint32_t group) {
    for (int i = 0; i < 2; i++) {
        struct channel_owner owner = {i ? ring_1 : ring_0, i ? lost_1 : lost_0, e};
        OK(channel_open(&c[i], e->net[i], group, owner, ERR));
    }
}

static void open_ends(struct ends *e, int buffer) {
    struct sockets s;
    *e = (struct ends){{NULL}, {NULL}, {0}, {0}};
    sockets_connect(&s, 2, buffer);
    for (int i = 0; i < 2; i++)
        OK(net_open(&e->net[i], &CHANNELS, i, 2, s.data[i], s.messages[i], ERR));
    sockets_close(&s);
    open_both(e, e->channel, 0);
}

static void look_at_both(struct ends *e) {
    net_look(e->net[0]);
    net_look(e->net[1]);
}

/* Closes one end. One thread can't close both ends at the same time, so neither end waits for the
 * other's farewell. */
static void close_end(struct ends *e, int i, bool clean) {
    channel_close(e->channel[i]);
    e->net[i]->peers[1 - i].left = true;
    net_close(e->net[i], clean);
}

static void close_both(struct ends *e) {
    close_end(e, 0, true);
    close_end(e, 1, true);
}

#define ENDS_TEST(name, buffer) TEST_ON(name, struct ends, e, open_ends(e, buffer), close_both(e))

/* A frame on its way from end 0 to end 1. */
struct transit {
    size_t n;
    unsigned char *from, *to;
    struct frame *out, *in;
};

static void transit_new(struct transit *x, size_t n, unsigned seed) {
    *x = (struct transit){.n = n, .from = room(n), .to = room(n)};
    fill_mixed(x->from, n, seed);
}

static void transit_free(struct transit *x) {
    free(x->from);
    free(x->to);
}

static void post_send(struct ends *e, struct transit *x) {
    OK(channel_isend(e->channel[0], x->from, x->n, 1, &x->out, ERR));
}

static void post_receive(struct ends *e, struct transit *x) {
    OK(channel_irecv(e->channel[1], x->to, x->n, 0, &x->in, ERR));
}

static bool is_done(const struct frame *p) { return !p || p->complete; }

static bool finish(struct ends *e, const struct transit *x) {
    for (int looks = 0; looks < 100000 && !(is_done(x->in) && is_done(x->out)); looks++)
        look_at_both(e);
    return is_done(x->in) && is_done(x->out);
}

static void finish_all(struct ends *e, struct transit *x, int n) {
    for (int i = 0; i < n; i++) {
        CHECK_CASE(finish(e, &x[i]), "frame %d", i);
        CHECK_CASE(is_mixed(x[i].to, x[i].n, (uint64_t)i), "frame %d of %zu bytes", i, x[i].n);
        transit_free(&x[i]);
    }
}

static size_t length_of(uint64_t *r) {
    static const size_t LENGTHS[] = {0, 1, 4, 11, 4083, 4084, 4096, 9000, 70000, BIG};
    return LENGTHS[random_below(r, sizeof LENGTHS / sizeof *LENGTHS)];
}

/* Posts sends and receives in random order and looks at the streams in between. `several`: a second
 * group is open, so frames without a receive are kept. */
static void run_frames(uint64_t seed, int buffer, bool several) {
    struct ends e;
    uint64_t r = seed;
    struct channel *others[2];
    struct transit x[MOST_FRAMES];
    int sent = 0, posted = 0;
    open_ends(&e, buffer);
    if (several) open_both(&e, others, 7);
    for (int i = 0; i < MOST_FRAMES; i++) transit_new(&x[i], length_of(&r), (unsigned)i);
    while (sent < MOST_FRAMES || posted < MOST_FRAMES) {
        switch (random_below(&r, 3)) {
        case 0:
            if (sent < MOST_FRAMES) post_send(&e, &x[sent++]);
            break;
        case 1:
            if (posted < MOST_FRAMES) post_receive(&e, &x[posted++]);
            break;
        default: net_look(e.net[random_below(&r, 2)]);
        }
    }
    finish_all(&e, x, MOST_FRAMES);
    CHECK(e.rings[1] > 0 && !e.lost[0] && !e.lost[1]);
    for (int i = 0; i < 2 && several; i++) channel_close(others[i]);
    close_both(&e);
}

TEST(test_frames_may_arrive_in_any_order) {
    for (uint64_t seed = 1; seed <= (CHECK_SLOW ? 10 : 40); seed++)
        run_frames(seed, seed % 3 ? TINY : SOCKETS_TCP, seed % 2);
}

/* Other groups can use a stream (a socket) after a group has abandoned its transfers: if the sender
 * abandoned, it sends the rest of a frame from a copy; if the receiver did, it drops the rest. */
static void run_abandon(bool sender, bool receiver) {
    struct ends e;
    struct channel *c[2];
    OWN(transit_free) struct transit x, y;
    open_ends(&e, TINY);
    open_both(&e, c, 7);
    transit_new(&x, BIG, 0);
    transit_new(&y, BIG, 1);
    post_send(&e, &x);
    post_receive(&e, &x);
    for (int i = 0; i < 5; i++) look_at_both(&e);
    CHECK(!is_done(x.out) && !is_done(x.in));
    if (sender) channel_abandon(e.channel[0]);
    if (receiver) channel_abandon(e.channel[1]);
    if (sender) memset(x.from, 0x33, BIG);
    if (receiver) memset(x.to, 0x33, BIG);
    OK(channel_isend(c[0], y.from, BIG, 1, &y.out, ERR));
    OK(channel_irecv(c[1], y.to, BIG, 0, &y.in, ERR));
    CHECK(finish(&e, &y) && is_mixed(y.to, BIG, 1));
    if (!receiver) CHECK(is_done(x.in) && is_mixed(x.to, BIG, 0));
    for (int i = 0; i < BIG && receiver; i++)
        if (!CHECK(x.to[i] == 0x33)) break;
    for (int i = 0; i < 2; i++) channel_close(c[i]);
    close_both(&e);
}

TEST(test_after_an_abandoned_frame_the_stream_goes_on) {
    run_abandon(true, false);
    run_abandon(false, true);
    run_abandon(true, true);
}

static void send_text(struct channel *c, const char *text) {
    OK(channel_send(c, 1 - c->net->rank, text, strlen(text) + 1, ERR));
}

static void check_text(struct channel *c, const char *text) {
    OWNED struct frame *p = NULL;
    for (int looks = 0; looks < 1000 && !(p = channel_take(c, -1)); looks++) net_look(c->net);
    if (!CHECK_CASE(p != NULL, "'%s'", text)) return;
    CHECK_TEXT(p->data, text);
    free(p->data);
}

/* A rank may open a group late; frames that arrived earlier are kept. */
ENDS_TEST(test_frames_for_a_group_that_is_not_open_yet_are_kept, 0) {
    struct channel *c[2];
    struct frame *p;
    char got[4] = "";
    OK(channel_open(&c[0], e->net[0], 9, e->channel[0]->owner, ERR));
    OK(channel_isend(c[0], "abc", 4, 1, &p, ERR));
    send_text(c[0], "early");
    send_text(e->channel[0], "of the world");
    check_text(e->channel[1], "of the world");
    OK(channel_open(&c[1], e->net[1], 9, e->channel[1]->owner, ERR));
    check_text(c[1], "early");
    OK(channel_irecv(c[1], got, 4, 0, &p, ERR));
    CHECK(!p);
    CHECK_TEXT(got, "abc");
    channel_close(c[1]);
    FAILS(channel_open(&c[1], e->net[1], 9, e->channel[1]->owner, ERR), HVD_INVALID);
    send_text(c[0], "late"); /* its group is closed */
    send_text(e->channel[0], "after it");
    check_text(e->channel[1], "after it");
    channel_over(c[0]->net, 9, (int[]){1}, 1);
    channel_close(c[0]);
}

enum end { FAREWELL, SILENT, DATA_ONLY, JUNK, STREAMS_IN_A_CHILD };

static void run_end(enum end how) {
    static const unsigned char NOISE[100] = {0xff, 0xee, 0xdd, 0xcc, 9, 9, 9, 9, 9, 9};
    struct ends e;
    open_ends(&e, 0);
    struct link *links = e.net[0]->peers[1].links;
    send_text(e.channel[0], "last words");
    if (how == JUNK) CHECK(write(links[STREAM_MESSAGES].file, NOISE, sizeof NOISE) > 0);
    if (how == DATA_ONLY) link_close(&links[STREAM_DATA]);
    if (how == FAREWELL || how == SILENT) close_end(&e, 0, how == FAREWELL);
    check_text(e.channel[1], "last words");
    for (int i = 0; i < 10; i++) net_look(e.net[1]);
    CHECK_INT(e.lost[1], how == SILENT);
    CHECK_INT(e.rings[1], how == FAREWELL || how == JUNK ? 2 : 1);
    CHECK_INT(channel_check(e.channel[1], -1, 0, ERR), how == JUNK ? HVD_TRANSPORT : HVD_OK);
    if (how == FAREWELL || how == STREAMS_IN_A_CHILD) net_bury(e.net[1], 0, FATE_DIED);
    CHECK_INT(e.lost[1], how == SILENT || how == STREAMS_IN_A_CHILD);
    send_text(e.channel[1], "to nobody");
    close_end(&e, 1, true);
    if (how != FAREWELL && how != SILENT) close_end(&e, 0, true);
}

TEST(test_a_rank_that_leaves_and_a_rank_that_dies_are_told_apart) {
    for (int how = FAREWELL; how <= STREAMS_IN_A_CHILD; how++) run_end((enum end)how);
}

/* After a network failure a stream soon works again; the kernel never closes the stream. */
ENDS_TEST(test_tcp_retries_at_least_every_two_seconds, SOCKETS_TCP) {
    int files[2], often = 0, give_up = 0;
    socklen_t size = sizeof often;
    enum { TCP_RTO_MAX_MS = 44, TCP_USER_TIMEOUT = 18 };
    sockets_tcp_pair(files);
    bool knows = getsockopt(files[0], IPPROTO_TCP, TCP_RTO_MAX_MS, &often, &size) == 0;
    for (int i = 0; i < 2; i++) close(files[i]);
    int file = e->net[0]->peers[1].links[STREAM_DATA].file;
    getsockopt(file, IPPROTO_TCP, TCP_RTO_MAX_MS, &often, &size);
    getsockopt(file, IPPROTO_TCP, TCP_USER_TIMEOUT, &give_up, &size);
    if (knows) CHECK(often <= 2000 && give_up >= 3600 * 1000);
}

/* Limits the process's memory. Under a sanitizer, this would end the program. */
ENDS_TEST(test_a_frame_without_memory_is_an_error, 0) {
    struct frame_head head = {LINK_LONGEST, 0, FRAME_MESSAGE};
    if (CHECK_SLOW) return;
    CHECK(write(e->net[0]->peers[1].links[STREAM_MESSAGES].file, &head, sizeof head) > 0);
    OK(channel_check(e->channel[1], -1, 0, ERR));
    struct rlimit old = limit_to(RLIMIT_AS, LINK_LONGEST / 2);
    net_look(e->net[1]);
    setrlimit(RLIMIT_AS, &old);
    FAILS(channel_check(e->channel[1], -1, 0, ERR), HVD_NO_MEMORY);
    CHECK(e->rings[1] == 1 && !e->lost[1]);
}

ENDS_TEST(test_a_frame_whose_length_differs_from_the_receive_is_an_error, 0) {
    OWN(transit_free) struct transit x;
    struct frame *p;
    transit_new(&x, 100, 0);
    post_send(e, &x);
    OK(channel_irecv(e->channel[1], x.to, 99, 0, &p, ERR));
    net_look(e->net[1]);
    FAILS(channel_check(e->channel[1], -1, 0, ERR), HVD_INTERNAL);
    CHECK_HAS(ERR->text, "rank 0 sent 100 bytes, but rank 1 expected 99: is the version");
    CHECK(p && !p->complete && x.to[0] == 0 && e->rings[1] == 1);
}

/* A thread may wait for a send that another thread completes. */
ENDS_TEST(test_a_send_that_another_thread_completes_wakes_its_waiter, TINY) {
    OWN(transit_free) struct transit x;
    transit_new(&x, BIG, 0);
    post_send(e, &x);
    CHECK(x.out && !e->rings[0]);
    post_receive(e, &x);
    CHECK(finish(e, &x));
    CHECK_INT(e->rings[0], 1);
}

/* How many of this thread's next socket calls fail, and the errno. */
static int failing, why;

static bool fails(void) {
    if (failing) errno = why;
    return failing && failing--;
}

ssize_t sendmsg(int file, const struct msghdr *m, int flags) {
    return fails() ? -1 : (ssize_t)syscall(SYS_sendmsg, file, m, flags);
}

ssize_t readv(int file, const struct iovec *v, int n) {
    return fails() ? -1 : (ssize_t)syscall(SYS_readv, file, v, n);
}

/* A lack of memory in the kernel is temporary, but no event of the socket reports its end. */
TEST(test_a_stream_goes_on_after_the_kernel_lacked_memory) {
    static const int PASSING[] = {ENOBUFS, ENOMEM, EINTR};
    for (int i = 0; i < 3; i++) {
        struct ends e;
        OWN(transit_free) struct transit x;
        open_ends(&e, 0);
        transit_new(&x, 100, 0);
        failing = 3, why = PASSING[i];
        post_send(&e, &x);
        CHECK_INT(net_tries_again(e.net[0]), why != EINTR);
        CHECK_INT(x.out == NULL, why == EINTR);
        post_receive(&e, &x);
        CHECK_CASE(finish(&e, &x) && is_mixed(x.to, 100, 0), "%s", strerror(why));
        CHECK(!net_tries_again(e.net[0]) && !net_tries_again(e.net[1]) && !e.lost[1]);
        close_both(&e);
    }
}

/* If a socket call of rank `one` fails, this does not mean that the other rank has ended. */
static void run_error(int one) {
    struct ends e;
    struct frame *p = NULL;
    char byte = 0;
    open_ends(&e, 0);
    failing = one == 0, why = EFAULT;
    OK(channel_isend(e.channel[0], &byte, 1, 1, &p, ERR));
    OK(channel_irecv(e.channel[1], &byte, 1, 0, &p, ERR));
    failing = one == 1;
    net_look(e.net[1]);
    CHECK_INT(e.rings[one], 1);
    OK(channel_check(e.channel[1 - one], -1, 0, ERR));
    FAILS(channel_check(e.channel[one], -1, 0, ERR), HVD_TRANSPORT);
    CHECK_HAS(ERR->text, one ? "rank 1 can't exchange data with rank 0: Bad address"
                             : "rank 0 can't exchange data with rank 1: Bad address");
    CHECK(!e.lost[0] && !e.lost[1]);
    close_both(&e);
}

TEST(test_a_rank_whose_own_socket_fails_does_not_blame_its_peer) {
    for (int one = 0; one < 2; one++) run_error(one);
}
