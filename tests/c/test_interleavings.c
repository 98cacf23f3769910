/* The ranks of a host access their shared memory in every order: doorbells wake ranks, no message
 * is read before it is written, no data is overwritten before all ranks have read it. */
#define _GNU_SOURCE
#include "interleave.h"

#include "collectives/algorithm.h"
#include "shm/mailbox.h"
#include "shm/window.h"

#include <inttypes.h>

#include "interleave_core.h"

#define damaged mailbox_damaged
#define put mailbox_put
#define begin mailbox_begin
#include "shm/mailbox.c"
#undef put
#undef begin

#include "shm/window.c"

struct awaited_flag {
    const struct window *window;
    int rank;
    enum window_flag flag;
    uint64_t round;
};

static bool flag_is_raised(const void *arg) {
    const struct awaited_flag *f = arg;
    return __atomic_load_n(&f->window->ranks[f->rank].flags[f->flag].rounds, __ATOMIC_SEQ_CST) >
           f->round;
}

int comm_wait_flag(const struct comm *comm, int rank, enum window_flag flag, uint64_t round,
                   hvd_error *err) {
    wait_until(flag_is_raised, &(struct awaited_flag){comm->window, rank, flag, round});
    return HVD_OK;
}

int comm_wait_flags(const struct comm *comm, enum window_flag flag, uint64_t round,
                    hvd_error *err) {
    for (int d = 1; d < comm->size; d++)
        HVD_TRY(comm_wait_flag(comm, (comm->rank + d) % comm->size, flag, round, err));
    return HVD_OK;
}

int comm_wait_slot(const struct comm *comm, uint64_t round, hvd_error *err) {
    if (round < WINDOW_SLOTS) return HVD_OK;
    return comm_wait_flags(comm, WINDOW_TAKEN, round - WINDOW_SLOTS, err);
}

void comm_count_window(const struct comm *comm, size_t bytes) { (void)comm, (void)bytes; }

/* Lets another task run before an access to the first KiB of a page. Doing this before all accesses
 * gives too many orders to try. */
static void *turn_at(void *to) {
    if ((uintptr_t)to % 4096 < 1024) turn();
    return to;
}

#define reduce_all(kernels, to, ...) (reduce_all)(kernels, turn_at(to), __VA_ARGS__)
#define comm_helpers(comm) NULL
#define lines_copy(to, from, n) (lines_copy)(turn_at(to), from, n)
#define lines_copy_over(to, from, n) (lines_copy_over)(turn_at(to), from, n)
#include "collectives/window_pass.c"

#include "collectives/window.c"
#include "collectives/window_copies.c"

/* ---- the doorbell: one task sleeps, the other tasks add work and ring ---- */

static struct {
    struct doorbell bell;
    atomic_uint work;
    int rings; /* how often each task rings the doorbell */
} sleeper;

static void open_bell(void) {
    sleeper.bell = (struct doorbell){0};
    __atomic_store_n(&sleeper.work, 0, __ATOMIC_SEQ_CST);
    memset(asleep, 0, sizeof asleep);
}

static void close_bell(void) {}

static void ring_or_sleep(int task) {
    for (int i = 0; i < sleeper.rings && task > 0; i++) {
        atomic_fetch_add(&sleeper.work, 1);
        doorbell_ring(&sleeper.bell);
    }
    for (unsigned all = (unsigned)(sleeper.rings * (search.n - 1)); task == 0;) {
        unsigned ticket = doorbell_listen(&sleeper.bell);
        if (atomic_load(&sleeper.work) == all) return;
        doorbell_sleep(&sleeper.bell, ticket, 1);
    }
}

TEST(test_a_sleeper_sees_each_ring_of_its_doorbell) {
    sleeper.rings = 2;
    printf("doorbell: %ld orders, ", interleave(2, AT_WILL, ring_or_sleep, open_bell, close_bell));
    sleeper.rings = 1;
    printf("%ld with two who ring\n", interleave(3, 4, ring_or_sleep, open_bell, close_bell));
}

/* ---- the mailbox: messages that together are longer than the ring ---- */

enum { MESSAGES = 3, LONG = MAILBOX_BYTES - 20 };

static struct {
    struct mailbox box;
    struct mail_out out;
    struct mail_in in;
} mail;

static unsigned char message[LONG];

static size_t length_of(int i) { return i == 1 ? LONG : 10; }

static void open_mail(void) {
    memset(&mail.box, 0, offsetof(struct mailbox, bytes));
    memset(mail.box.bytes, 0xee, sizeof mail.box.bytes);
    mail.out = (struct mail_out){0};
    mail.in = (struct mail_in){0};
}

static void close_mail(void) {
    mail_out_free(&mail.out);
    mail_in_free(&mail.in);
}

static bool has_room(const void *arg) {
    return mail.out.written - __atomic_load_n(&mail.box.read, __ATOMIC_SEQ_CST) < MAILBOX_BYTES;
}

static bool has_mail(const void *arg) {
    return __atomic_load_n(&mail.box.written, __ATOMIC_SEQ_CST) > mail.in.read;
}

static void write_mail(void) {
    for (int i = 0; i < MESSAGES; i++)
        OK(mailbox_send(&mail.box, &mail.out, message, length_of(i), ERR));
    while (mail.out.size) {
        wait_until(has_room, NULL);
        OK(mailbox_flush(&mail.box, &mail.out, ERR));
    }
}

static void read_mail(void) {
    for (int i = 0; i < MESSAGES;) {
        void *data;
        size_t size = 0;
        OK(mailbox_receive(&mail.box, &mail.in, &data, &size, ERR));
        if (!data) {
            wait_until(has_mail, NULL);
            continue;
        }
        CHECK(size == length_of(i++) && !memcmp(data, message, size));
        free(data);
    }
}

static void write_or_read(int task) { task ? read_mail() : write_mail(); }

TEST(test_messages_arrive_whole_and_in_order) {
    for (size_t i = 0; i < LONG; i++) message[i] = (unsigned char)(i * 31 + 7);
    int most = CHECK_SLOW ? 2 : 3;
    printf("mailbox: %ld orders\n", interleave(2, most, write_or_read, open_mail, close_mail));
}

/* ---- the window (shared memory), whose slots are used again for later data ---- */

/* values that fit into one slot, and values that need two */
enum { FEW = 3, MANY = 2 * WINDOW_SLOT / (int)sizeof(float) - 100 };

/* Several broadcasts in a row, because their root may fill all slots before another rank reads. */
static const hvd_kind CALLS[] = {HVD_ALLREDUCE, HVD_BROADCAST, HVD_BROADCAST,
                                 HVD_BROADCAST, HVD_BROADCAST, HVD_ALLREDUCE};

static struct {
    void *memory;
    struct window windows[TASKS_MOST];
    struct scratch scratch[TASKS_MOST];
    size_t values; /* number of values in each call */
    float data[TASKS_MOST][MANY];
} host;

/* Clears the slots, because the previous run has left the values that this run will write. */
static void open_rank(struct window_rank *rank) {
    size_t bytes = host.values * sizeof(float);
    for (int f = 0; f < WINDOW_FLAGS; f++)
        __atomic_store_n(&rank->flags[f].rounds, 0, __ATOMIC_SEQ_CST);
    for (int i = 0; i < WINDOW_SLOTS; i++)
        memset(rank->slots[i], 0x7f, bytes < WINDOW_SLOT ? bytes : WINDOW_SLOT);
}

static void open_host(void) {
    for (int r = 0; r < search.n; r++) {
        window_init(&host.windows[r], host.memory, search.n, r);
        open_rank(&host.windows[r].ranks[r]);
    }
}

static void close_host(void) {}

/* Returns inputs that never equal a sum of other inputs. */
static float input(int rank, int call) { return (float)(1 + rank + 16 * call); }

static float sum_of(int call) {
    float sum = 0;
    for (int r = 0; r < search.n; r++) sum += input(r, call);
    return sum;
}

static void call_once(const struct comm *comm, int call) {
    float *data = host.data[comm->rank];
    size_t bytes = host.values * sizeof *data;
    for (size_t i = 0; i < host.values; i++) data[i] = input(comm->rank, call);
    struct coll_tensor tensor = {.in = (char *)data, .out = (char *)data, .bytes = bytes};
    struct coll_args args = {.kind = CALLS[call],
                             .bytes = bytes,
                             .tensors = &tensor,
                             .ntensors = 1,
                             .reduce = reduce_kernels(HVD_FLOAT32, HVD_SUM),
                             .prescale = 1,
                             .final = {1, 1},
                             .scratch = &host.scratch[comm->rank]};
    bool adds = args.kind == HVD_ALLREDUCE;
    OK((adds ? coll_window_allreduce : coll_window_broadcast)(comm, &args, ERR));
    size_t right = 0;
    for (size_t i = 0; i < host.values; i++)
        right += data[i] == (adds ? sum_of(call) : input(0, call));
    CHECK_INT((long long)right, (long long)host.values);
}

static void call_all(int rank) {
    const struct comm comm = {.rank = rank, .size = search.n, .window = &host.windows[rank]};
    for (int i = 0; i < (int)(sizeof CALLS / sizeof *CALLS); i++) call_once(&comm, i);
}

static long search_window(int ranks, int values, int most) {
    host.memory = aligned_alloc(4096, window_bytes(ranks));
    REQUIRE(host.memory);
    host.values = (size_t)values;
    long orders = interleave(ranks, most, call_all, open_host, close_host);
    free(host.memory);
    for (int r = 0; r < ranks; r++) scratch_free(&host.scratch[r]);
    memset(host.scratch, 0, sizeof host.scratch);
    return orders;
}

TEST(test_no_slot_is_overwritten_before_all_ranks_have_read_it) {
    printf("window: %ld orders, ", search_window(2, FEW, CHECK_SLOW ? 1 : 2));
    printf("%ld of three ranks, ", search_window(3, FEW, 1));
    printf("%ld of calls in rounds\n", search_window(2, MANY, CHECK_SLOW ? 0 : 1));
}
