/* Point-to-point within a host: receives that read the sender's memory, and what ends them. */
#define _GNU_SOURCE /* process_vm_readv, syscall */
#include "letters.h"

#include "random.h"

#include <errno.h>
#include <math.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { LONG = P2P_READ_STEP + P2P_LOAN + 3 }; /* bytes, two steps */

/* How process_vm_readv behaves. NO_DATA: only the cookie (a number that proves whose memory it is)
 * can be read. HELD: the first read waits in two barriers of the ranks. */
static enum { READS, NO_READ, NO_DATA, HELD } kernel;
static atomic_int calls;
static struct ranks *held;

/* takes the place of the C library's function */
ssize_t process_vm_readv(pid_t pid, const struct iovec *here, unsigned long nhere,
                         const struct iovec *there, unsigned long nthere, unsigned long flags) {
    int before = atomic_fetch_add(&calls, 1);
    if (kernel == NO_READ) return errno = EPERM, -1;
    if (kernel == NO_DATA) nhere = nthere = 1;
    for (int i = 0; i < 2 && kernel == HELD && !before; i++) ranks_meet(held);
    return syscall(SYS_process_vm_readv, pid, here, nhere, there, nthere, flags);
}

/* Emulators do not provide the call, so data goes through the bounce buffer there. */
static bool has_reads(void) {
    uint64_t cookie = 1, copy = 0;
    struct loan loan = loan_of(&copy, &cookie);
    kernel = READS;
    return loan_read(&loan, 0, &copy, sizeof copy) == LOAN_READ;
}

/* Each rank sends to the next rank. */
ENGINES(ring_main, arg) {
    enum { N = 4 };
    static const size_t BYTES[N] = {LONG, P2P_LOAN - 1, P2P_LOAN, 2 * P2P_READ_STEP + 1};
    struct work to[N], from[N];
    int p = me->ranks->size, next = (me->rank + 1) % p, previous = (me->rank + p - 1) % p;
    for (int i = 0; i < N; i++) OK(letter_start(&to[i], me, HVD_SEND, next, "x", i, BYTES[i]));
    for (int i = 0; i < N; i++)
        OK(letter_start(&from[i], me, HVD_RECV, previous, "x", i, BYTES[i]));
    engine_rank_wait(me);
    for (int i = 0; i < N; i++) {
        CHECK_CODE(to[i].error.code, HVD_OK, to[i].error);
        check_received(&from[i], previous, i);
        work_free(&to[i]);
        work_free(&from[i]);
    }
}

static int calls_of_ring(int p, int how) {
    kernel = how;
    atomic_store(&calls, 0);
    ranks_run_on_window(p, ring_main, NULL);
    return atomic_load(&calls);
}

TEST(test_long_data_is_read_from_the_senders_memory_if_the_kernel_allows_it) {
    bool reads = has_reads();
    for (int p = 2; p <= 4; p = more_ranks(p)) {
        int n = calls_of_ring(p, READS);
        CHECK_INT(n, reads ? p * (2 + 1 + 3) : p);
        CHECK_INT(calls_of_ring(p, NO_READ), p); /* no rank tries twice */
        n = calls_of_ring(p, NO_DATA);
        CHECK_INT(n, reads ? p * 3 : p);
    }
}

/* The offer arrives before the receive is submitted, and no thread waits for the receive. The
 * receive must not wait until the engine's thread looks for messages again, after up to 0.5 s. */
ENGINES(unwaited_main, arg) {
    double least = PATIENCE;
    for (int i = 0; i < 20; i++) {
        struct work x;
        if (me->rank) clock_nap(0.05);
        double begin = clock_now();
        OK(letter_start(&x, me, me->rank ? HVD_RECV : HVD_SEND, 1 - me->rank, "x", i, LONG));
        engine_rank_wait(me);
        least = fmin(least, clock_now() - begin);
        if (me->rank) check_received(&x, 0, i);
        work_free(&x);
    }
    CHECK_CASE(!me->rank || least < 0.3, "%g s until the receive has ended", least);
}

TEST(test_a_receive_for_which_no_thread_waits_is_read_at_once) {
    kernel = READS;
    ranks_run_on_window(2, unwaited_main, NULL);
}

/* The sender's tensor fails during the read, and its memory gets other contents. */
ENGINES(failing_main, arg) {
    struct work x;
    OK(letter_start(&x, me, me->rank ? HVD_RECV : HVD_SEND, 1 - me->rank, "x", 0, LONG));
    if (!me->rank) {
        ranks_meet(me->ranks);
        engine_rank_stop(me);
        memset(x.in, 0xff, LONG);
        ranks_meet(me->ranks);
        check_refused(&x, HVD_TRANSPORT, "was stopped before the job ended");
        return;
    }
    engine_rank_wait(me);
    check_refused(&x, HVD_TRANSPORT, "was stopped before the job ended");
}

static void hold(struct ranks *ranks, int rank, void *arg) {
    if (!rank) held = ranks;
    failing_main(ranks, rank, arg);
}

TEST(test_a_receive_fails_if_the_send_fails_during_the_read) {
    if (!has_reads()) return;
    kernel = HELD;
    atomic_store(&calls, 0);
    ranks_run_on_window(2, hold, NULL);
}

/* A false sender: whether the cookie of its offer is wrong or missing, which message the receiver
 * must send, and the wrong answer. */
struct wrong {
    bool other_cookie, no_cookie;
    enum p2p_type asked, answer;
};

ENGINES(receive_main, arg) {
    struct work x;
    if (me->rank != 1) return;
    OK(letter_start(&x, me, HVD_RECV, 0, "x", 0, P2P_LOAN));
    engine_rank_wait(me);
    check_refused(&x, HVD_TRANSPORT, "from rank 0 is damaged");
}

static struct p2p_head question_to(struct transport *t) {
    struct p2p_head head = {.type = P2P_HELLO};
    struct message m;
    /* a P2P_WANT of 0 bytes reports only that a receive has matched */
    while (head.type == P2P_HELLO || (head.type == P2P_WANT && !head.bytes)) {
        OK(transport_receive(t, &m, ERR));
        if (m.data && p2p_is_message(&m)) memcpy(&head, m.data, sizeof head);
        if (!m.data) clock_yield();
        free(m.data);
    }
    return head;
}

static void answer_wrongly(struct ranks *ranks, int rank, void *arg) {
    const struct wrong *w = arg;
    static char data[P2P_LOAN];
    uint64_t cookie = w->no_cookie ? 0 : 4711;
    struct {
        struct p2p_head head;
        char name[1], near[sizeof(struct p2p_near)];
    } offer = {{P2P_MARK, P2P_OFFER, 1, HVD_UINT8, 1, P2P_LOAN}, "x", ""};
    struct p2p_near near = {.loan = loan_of(data, &cookie)};
    cookie += w->other_cookie;
    memcpy(offer.near, &near, sizeof near);
    if (!rank) {
        struct transport *t = rank_transport(ranks, 0);
        size_t size = offsetof(__typeof__(offer), near) + sizeof near;
        OK(transport_send(t, 1, &offer, size, ERR));
        struct p2p_head answer = {P2P_MARK, (uint8_t)w->answer, 0, 0, 1, 0};
        CHECK_INT(question_to(t).type, w->asked);
        OK(transport_send(t, 1, &answer, sizeof answer, ERR));
    }
    receive_main(ranks, rank, arg);
}

TEST(test_a_receive_does_not_end_on_an_answer_to_another_question) {
    if (!has_reads()) return;
    ranks_run_on_window(2, answer_wrongly, &(struct wrong){false, false, P2P_READ, P2P_PIECE});
    ranks_run_on_window(2, answer_wrongly, &(struct wrong){true, false, P2P_WANT, P2P_DONE});
    ranks_run_on_window(2, answer_wrongly, &(struct wrong){false, true, P2P_WANT, P2P_DONE});
}

/* ---- random messages ---- */

static void count_end(void *arg, const hvd_error *error) { ++*(int *)arg; }

enum { TENSORS = 6 };
static const size_t OF_FUZZ[] = {3, P2P_SHORT + 1, P2P_LOAN};

/* Submits sends to rank 1, and receives of data from rank 1. */
static void fuzz_submit(struct p2p *p, struct tensor *of, int *ends, char *memory) {
    for (int i = 0; i < TENSORS; i++) {
        struct request *r = &of[i].request;
        of[i] = (struct tensor){.in = memory, .complete = count_end, .arg = &ends[i]};
        *r = (struct request){.kind = i % 2 ? HVD_RECV : HVD_SEND, .root = 1, .ndim = 1};
        r->dtype = HVD_UINT8;
        r->dims[0] = (int64_t)OF_FUZZ[i / 2];
        snprintf(r->name, sizeof r->name, "%d", i / 2);
        of[i].out = i % 2 ? room(OF_FUZZ[i / 2]) : NULL;
        OK(p2p_submit(p, &of[i], ERR));
    }
}

/* Makes a message that rank 1 could send at some time; damages some of these messages. */
static size_t fuzz_message(uint64_t *random, const char *memory, const uint64_t *cookie,
                           unsigned char *data) {
    size_t i = random_below(random, TENSORS / 2), bytes = OF_FUZZ[i];
    struct p2p_near near = {.loan = loan_of(memory, cookie)};
    struct p2p_head head = {P2P_MARK, (uint8_t)random_below(random, P2P_LEFT + 1), 1, 0, 1 + i, 0};
    size_t size = random_below(random, 9);
    head.bytes = head.type == P2P_OFFER || head.type == P2P_WANT ? bytes : size;
    if (head.type == P2P_OFFER) head.code = HVD_UINT8;
    if (head.type == P2P_OFFER) size = bytes > 3 ? sizeof near : bytes;
    memcpy(data, &head, sizeof head);
    data[sizeof head] = (unsigned char)('0' + i);
    memcpy(data + sizeof head + 1, &near, sizeof near);
    size += sizeof head + 1;
    for (size_t n = random_below(random, 8); n < 2; n++)
        data[random_below(random, size)] = (unsigned char)random_next(random);
    return size;
}

static void fuzz_round(struct transport *t, uint64_t *random, char *memory) {
    struct tensor of[TENSORS];
    int ends[TENSORS] = {0}, code = HVD_OK;
    unsigned char data[200];
    struct p2p p;
    bool progress;
    p2p_open(&p, t, NULL, 0, NULL);
    fuzz_submit(&p, of, ends, memory);
    const uint64_t cookie = 4711;
    for (int n = 0; n < 20 && !code; n++) {
        code = p2p_step(&p, &progress, ERR);
        size_t size = fuzz_message(random, memory, &cookie, data);
        if (!code) code = p2p_take(&p, &(struct message){1, data, size}, ERR);
    }
    p2p_close(&p, &(hvd_error){.code = HVD_TRANSPORT});
    for (int i = 0; i < TENSORS; i++) {
        CHECK_INT(ends[i], 1);
        free(of[i].out);
    }
    p2p_free(&p);
}

static void fuzz_rank(struct ranks *ranks, int rank, void *arg) {
    uint64_t random = 7;
    struct message m;
    OWNED char *memory = room(P2P_LOAN);
    for (int i = 0; i < (CHECK_SLOW ? 200 : 1000) && !rank; i++) {
        fuzz_round(rank_transport(ranks, 0), &random, memory);
        do { /* drops what rank 0 has sent */
            OK(transport_receive(rank_transport(ranks, 1), &m, ERR));
            free(m.data);
        } while (m.data);
    }
}

TEST(test_damaged_messages_never_crash_the_receiver) {
    kernel = READS;
    ranks_run_on_window(2, fuzz_rank, NULL);
}
