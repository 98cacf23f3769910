/* Sends and receives without a matching call: how they fail, and what a late matching call gets.
 * The ranks have no engines: the tests set the time and step the ranks. */
#include "letters.h"

enum { RANKS = 3, LIMIT = 60, TIMES = 5 };

struct job {
    struct local_hub *hub;
    struct p2p of[RANKS];
    bool silent[RANKS];
};

static struct transport *at(struct job *j, int rank) { return local_hub_rank(j->hub, rank); }

static void job_begin(struct job *j, bool window) {
    *j = (struct job){.hub = hub_of(RANKS, 0, window)};
    for (int r = 0; r < RANKS; r++) p2p_open(&j->of[r], at(j, r), NULL, 0, NULL);
}

static void job_end(struct job *j) {
    for (int r = 0; r < RANKS; r++) {
        p2p_close(&j->of[r], &(hvd_error){.code = HVD_TRANSPORT});
        p2p_free(&j->of[r]);
    }
    local_hub_free(j->hub);
}

/* A send or receive of bytes that all have the same value. */
struct note {
    struct tensor tensor;
    unsigned char *data;
    size_t bytes;
    int ends;
    hvd_error error;
};

static void note_ended(void *arg, const hvd_error *error) {
    struct note *n = arg;
    n->ends++;
    n->error = error ? *error : (hvd_error){0};
}

static void note_free(struct note *n) { free(n->data); }

static void post(struct job *j, struct note *n, int rank, hvd_kind kind, int peer, size_t bytes,
                 int value) {
    *n = (struct note){.data = room(bytes), .bytes = bytes};
    memset(n->data, value, bytes);
    n->tensor = (struct tensor){.in = n->data, .out = n->data, .complete = note_ended, .arg = n};
    struct request *r = &n->tensor.request;
    *r = (struct request){.kind = (int32_t)kind, .dtype = HVD_UINT8, .root = peer, .ndim = 1};
    r->dims[0] = (int64_t)bytes;
    snprintf(r->name, sizeof r->name, "x");
    OK(p2p_submit(&j->of[rank], &n->tensor, ERR));
}

/* Steps all ranks until no message moves. */
static void run(struct job *j) {
    struct message m;
    for (bool moves = true; moves;) {
        moves = false;
        for (int r = 0; r < RANKS; r++) {
            OK(p2p_step(&j->of[r], &moves, ERR));
            OK(transport_receive(at(j, r), &m, ERR));
            if (m.data) OK(p2p_take(&j->of[r], &m, ERR));
            moves |= m.data != NULL;
            free(m.data);
        }
    }
}

/* Lets a rank look at its sends and receives at the time `now`. */
static void look(struct job *j, int rank, double now) {
    run(j);
    OK(p2p_expire(&j->of[rank], now, LIMIT, j->silent, ERR));
    run(j);
}

static void check_stalled(const struct note *n, int blamed) {
    CHECK_INT(n->ends, 1);
    CHECK_CODE(n->error.code, HVD_STALLED, n->error);
    CHECK_INT(n->error.blamed[0], blamed);
    CHECK_HAS(n->error.text, "'x'");
    CHECK_HAS(n->error.text, "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS");
}

static void check_got(const struct note *n, int value) {
    CHECK_INT(n->ends, 1);
    CHECK_CODE(n->error.code, HVD_OK, n->error);
    size_t i = 0;
    while (i < n->bytes && n->data[i] == value) i++;
    CHECK_CASE(i == n->bytes, "byte %zu", i);
}

/* Rank 0 sends to rank 1. One of the two ranks is late: the other's first TIMES calls have failed.
 * `from`: from which rank late receives expect data, or P2P_ANY. */
static void check_late(bool late_send, int from, size_t bytes, bool window) {
    enum { OLD = 1, NEW };
    struct job j;
    struct note early[TIMES], late[TIMES], sent, got;
    int punctual = late_send, blamed = !late_send;
    job_begin(&j, window);
    for (int i = 0; i < TIMES; i++) {
        post(&j, &early[i], punctual, late_send ? HVD_RECV : HVD_SEND, !punctual, bytes, OLD);
        look(&j, punctual, 1e9 + LIMIT * i);
        check_stalled(&early[i], blamed);
        note_free(&early[i]);
    }
    /* the memory that the job keeps does not grow with the number of failures */
    struct p2p_failed *kept = late_send ? j.of[1].expired : j.of[1].withdrawn;
    CHECK(kept && kept->count == TIMES && !kept->next && !j.of[1].offers);
    for (int i = 0; i < TIMES; i++) {
        post(&j, &late[i], blamed, late_send ? HVD_SEND : HVD_RECV, late_send ? 1 : from, bytes,
             OLD);
        run(&j);
        check_stalled(&late[i], blamed);
        note_free(&late[i]);
    }
    CHECK(!j.of[1].expired && !j.of[1].withdrawn);
    post(&j, &sent, 0, HVD_SEND, 1, bytes, NEW);
    post(&j, &got, 1, HVD_RECV, 0, bytes, OLD);
    run(&j);
    check_got(&sent, NEW);
    check_got(&got, NEW);
    note_free(&sent);
    note_free(&got);
    job_end(&j);
}

TEST(test_each_late_send_or_receive_fails_and_the_next_one_matches) {
    const size_t bytes[] = {5, 30000, P2P_LOAN};
    for (int i = 0; i < 6; i++) {
        check_late(true, 0, bytes[i / 2], i % 2);
        check_late(false, 0, bytes[i / 2], i % 2);
        check_late(false, P2P_ANY, bytes[i / 2], i % 2);
    }
}

TEST(test_a_send_or_receive_that_is_given_up_fails_unless_it_is_matched) {
    struct job j;
    OWN(note_free) struct note receive, matched, late, send, taken, got;
    job_begin(&j, false);
    post(&j, &receive, 1, HVD_RECV, 0, 4, 0);
    post(&j, &send, 1, HVD_SEND, 2, 4, 1);
    post(&j, &matched, 0, HVD_SEND, 2, 4, 2);
    post(&j, &taken, 2, HVD_RECV, 0, 4, 0);
    run(&j);
    atomic_store(&receive.tensor.given_up, true);
    atomic_store(&send.tensor.given_up, true);
    atomic_store(&matched.tensor.given_up, true);
    for (int r = 0; r < RANKS; r++) OK(p2p_expire(&j.of[r], 0, 0, j.silent, ERR)); /* no limit */
    run(&j);
    post(&j, &late, 0, HVD_SEND, 1, 4, 3);
    post(&j, &got, 2, HVD_RECV, 1, 4, 0);
    run(&j);
    check_got(&taken, 2);
    struct note *ended[] = {&receive, &send, &late, &got};
    for (int i = 0; i < 4; i++) check_stalled(ended[i], i % 2 ? 2 : 0);
    job_end(&j);
}

TEST(test_after_a_wildcard_receive_expires_a_late_send_matches_the_next_receive) {
    struct job j;
    OWN(note_free) struct note first, next, sent;
    job_begin(&j, false);
    post(&j, &first, 1, HVD_RECV, P2P_ANY, 4, 0);
    look(&j, 1, 1e9);
    CHECK_CODE(first.error.code, HVD_STALLED, first.error);
    CHECK_HAS(first.error.text, "no rank has sent it");
    CHECK_INT(first.error.nblamed, 0);
    post(&j, &next, 1, HVD_RECV, P2P_ANY, 4, 0);
    post(&j, &sent, 0, HVD_SEND, 1, 4, 7);
    run(&j);
    check_got(&next, 7);
    job_end(&j);
}

TEST(test_a_receive_from_any_rank_prefers_a_send_that_still_waits) {
    struct job j;
    OWN(note_free) struct note given_up, sent, first, next;
    job_begin(&j, false);
    post(&j, &given_up, 2, HVD_SEND, 1, 4, 3);
    look(&j, 2, 1e9);
    check_stalled(&given_up, 1);
    post(&j, &sent, 0, HVD_SEND, 1, 4, 7);
    run(&j);
    post(&j, &first, 1, HVD_RECV, P2P_ANY, 4, 0);
    post(&j, &next, 1, HVD_RECV, P2P_ANY, 4, 0);
    run(&j);
    check_got(&first, 7);
    check_stalled(&next, 1);
    job_end(&j);
}

/* The younger receive must not fail first, because rank 0's next tensor matches the older
 * receive. */
TEST(test_a_receive_does_not_expire_before_an_older_wildcard_receive) {
    struct job j;
    OWN(note_free) struct note any, younger, other, sent, late;
    job_begin(&j, false);
    post(&j, &any, 1, HVD_RECV, P2P_ANY, 4, 0);
    post(&j, &younger, 1, HVD_RECV, 0, 4, 0);
    j.silent[2] = true; /* so `any`, which rank 2 could match, must not fail */
    look(&j, 1, 1e9);
    CHECK_INT(any.ends + younger.ends, 0);
    post(&j, &sent, 0, HVD_SEND, 1, 4, 7);
    run(&j);
    check_got(&any, 7);
    CHECK_INT(any.tensor.request.root, 0);
    post(&j, &other, 1, HVD_RECV, 2, 4, 0);
    look(&j, 1, 1e9);
    check_stalled(&younger, 0);
    CHECK_INT(other.ends, 0); /* the stall limit does not apply to a rank that does not answer */
    post(&j, &late, 0, HVD_SEND, 1, 4, 8);
    run(&j);
    check_stalled(&late, 0);
    job_end(&j);
}

/* The warning names the oldest tensor, in the list of sends or in the list of receives. */
TEST(test_the_oldest_tensor_is_found_among_sends_and_receives) {
    struct job j;
    OWN(note_free) struct note sent, got;
    job_begin(&j, false);
    post(&j, &sent, 0, HVD_SEND, 1, 4, 7);
    post(&j, &got, 0, HVD_RECV, 1, 4, 0);
    sent.tensor.submitted = 5;
    got.tensor.submitted = 10;
    run(&j);
    CHECK(p2p_oldest(&j.of[0]) == &sent.tensor);
    sent.tensor.submitted = 20;
    CHECK(p2p_oldest(&j.of[0]) == &got.tensor);
    job_end(&j);
}

/* Returns the types of the messages that wait for rank 0. */
static int messages(struct job *j, enum p2p_type *types) {
    struct message m;
    for (int n = 0;; n++) {
        OK(transport_receive(at(j, 0), &m, ERR));
        if (!m.data) return n;
        types[n] = (enum p2p_type)((struct p2p_head *)m.data)->type;
        OK(p2p_take(&j->of[0], &m, ERR));
        free(m.data);
    }
}

/* Rank 1 reads two tensors from rank 0's memory, one after the other. Rank 0 must learn that the
 * second tensor matches, because reading the first may take longer than the limit. A tensor that is
 * read in one step needs no such message. */
TEST(test_a_send_that_waits_for_an_older_read_does_not_fail) {
    struct job j;
    struct note sent[2], got[2];
    enum p2p_type types[8];
    uint64_t cookie = 1, copy = 0;
    struct loan loan = loan_of(&copy, &cookie);
    if (loan_read(&loan, 0, &copy, sizeof copy) != LOAN_READ) return; /* no rights, or emulated */
    job_begin(&j, true);
    for (int i = 0; i < 2; i++) post(&j, &sent[i], 0, HVD_SEND, 1, P2P_LOAN, 1 + i);
    run(&j);
    for (int i = 0; i < 2; i++) post(&j, &got[i], 1, HVD_RECV, 0, P2P_LOAN, 0);
    OK(p2p_step(&j.of[1], &(bool){false}, ERR));
    if (CHECK_INT(messages(&j, types), 2)) {
        CHECK_INT(types[0], P2P_WANT); /* for the second tensor */
        CHECK_INT(types[1], P2P_READ); /* for the first tensor */
    }
    look(&j, 0, 1e9);
    for (int i = 0; i < 2; i++) {
        check_got(&sent[i], 1 + i);
        check_got(&got[i], 1 + i);
        note_free(&sent[i]);
        note_free(&got[i]);
    }
    job_end(&j);
}
