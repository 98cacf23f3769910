/* Mailboxes: messages of any length between two threads arrive in order and complete. */
#include "check.h"

#include "base/os.h"
#include "random.h"
#include "shm/mailbox.h"
#include "shm/shmem.h"

enum { MESSAGES = CHECK_SLOW ? 3000 : 20000 };

static struct mailbox *mailbox_new(void) {
    struct mailbox *box = aligned_alloc(64, sizeof *box);
    REQUIRE(box != NULL);
    return memset(box, 0, sizeof *box);
}

/* Returns the length of message i: mostly short, sometimes longer than the ring. */
static size_t length_of(uint64_t *random, int i) {
    uint64_t bits = random_next(random) >> 20;
    if (i % 500 == 7) return MAILBOX_BYTES + bits % (2 * MAILBOX_BYTES);
    return bits % (i % 10 ? 60 : 9000);
}

static void *write_all(void *arg) {
    struct mailbox *box = arg;
    OWN(mail_out_free) struct mail_out out = {0};
    uint64_t random = 5;
    static unsigned char data[3 * MAILBOX_BYTES];
    for (int i = 0; i < MESSAGES; i++) {
        size_t size = length_of(&random, i);
        fill_mixed(data, size, (uint64_t)i);
        OK(mailbox_send(box, &out, data, size, ERR));
    }
    for (; out.size; sched_yield()) OK(mailbox_flush(box, &out, ERR));
    return NULL;
}

#define BOX_TEST(name) TEST_ON(name, struct mailbox, box, box = mailbox_new(), free(box))

BOX_TEST(test_messages_of_any_length_arrive_in_order) {
    OWN(mail_in_free) struct mail_in in = {0};
    pthread_t writer;
    uint64_t random = 5;
    REQUIRE(thread_start(&writer, write_all, box, "writer", ERR) == 0);
    for (int i = 0; i < MESSAGES;) {
        void *data;
        size_t size;
        OK(mailbox_receive(box, &in, &data, &size, ERR));
        if (!data) {
            sched_yield();
            continue;
        }
        CHECK_INT(size, length_of(&random, i));
        CHECK(is_mixed(data, size, (uint64_t)i));
        free(data);
        i++;
    }
    thread_join(writer);
    CHECK_INT(box->written, box->read);
}

/* The counts were overwritten, by another process of the user or by a bug in a rank. */
BOX_TEST(test_damaged_counts_and_lengths_are_an_error) {
    static const uint64_t WRONG[] = {UINT64_MAX, (uint64_t)1 << 63, MAILBOX_BYTES + 9};
    void *data;
    size_t size;
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        OWN(mail_out_free) struct mail_out out = {0};
        OWN(mail_in_free) struct mail_in in = {0};
        memset(box, 0, sizeof *box);
        OK(mailbox_send(box, &out, "hello", 6, ERR));
        box->written = box->read + WRONG[i];
        FAILS(mailbox_receive(box, &in, &data, &size, ERR), HVD_INTERNAL);
        CHECK_HAS(ERR->text, "the memory that the ranks of this host share is damaged");
        box->read = out.written - WRONG[i];
        FAILS(mailbox_send(box, &out, "hello", 6, ERR), HVD_INTERNAL);
        box->read = 0;
        box->written = out.written;
        uint64_t length = i ? WRONG[i] : UINT64_MAX - 7;
        memcpy(box->bytes, &length, sizeof length);
        /* a valid length, so the reader waits for the rest */
        bool fits = length <= MAILBOX_LONGEST;
        FAILS(mailbox_receive(box, &in, &data, &size, ERR), fits ? HVD_OK : HVD_INTERNAL);
        CHECK(data == NULL);
    }
}

/* Three ranks in real shared memory send to each other; the long message goes in pieces. */
TEST(test_three_ranks_exchange_messages_in_shared_memory) {
    enum { N = 3, LONG = 3 * MAILBOX_BYTES };
    static char sent[LONG];
    char address[SHMEM_ADDRESS];
    int fd;
    struct host hosts[N];
    void *memory;
    OK(shmem_make(host_bytes(N), &fd, ERR));
    shmem_address(fd, address);
    for (int i = 0; i < N; i++) {
        OK(shmem_map_sparse(&memory, host_bytes(N), address, ERR));
        OK(host_open(&hosts[i], memory, N, i, ERR));
        CHECK(!host_reaches(&hosts[i], i) && host_reaches(&hosts[i], (i + 1) % N));
    }
    close(fd);
    CHECK(shmem_map(&memory, host_bytes(N), true, address, ERR) == HVD_NO_MEMORY);
    for (int i = 0; i < N * N; i++) {
        int from = -1, self = i / N, to = i % N;
        void *data = NULL;
        size_t size, bytes = self < to ? LONG : 5;
        if (self == to) continue;
        memset(sent, i + 1, bytes);
        struct doorbell *bell = &hosts[to].window.ranks[to].doorbell;
        unsigned ticket = doorbell_listen(bell);
        OK(host_send(&hosts[self], to, sent, bytes, ERR));
        CHECK(atomic_load(&bell->rings) != ticket); /* the doorbell wakes the rank */
        for (int looks = 0; looks < 10 && !data; looks++) {
            OK(host_receive(&hosts[to], &from, &data, &size, ERR));
            OK(host_flush(&hosts[self], ERR));
        }
        CHECK_INT(from, self);
        CHECK(data && size == bytes && memcmp(data, sent, size) == 0);
        free(data);
        OK(host_receive(&hosts[to], &from, &data, &size, ERR));
        CHECK(!data);
    }
    for (int i = 0; i < N; i++) host_close(&hosts[i]);
}
