/* No work is quadratic in the pending tensors: 8 times as many tensors take about 8 times as
 * long. */
#include "coordinator_case.h"
#include "random.h"

#include "engine/tensors.h"
#include "negotiation/fusion.h"
#include "negotiation/ready.h"
#include "shm/mailbox.h"

/* Quadratic work takes 64 times as long, linear work 8 times, or 16 times because of caches and a
 * busy machine. */
enum { FEW = CHECK_SLOW ? 2000 : 4000, TIMES = 8, MOST_TIMES = 30 };

/* Seconds. A shorter time depends more on page faults and caches than on the work. Quadratic work
 * on TIMES * FEW tensors takes more than MOST_TIMES * FLOOR if each pair takes 0.1 ns. */
static const double FLOOR = 4e-3;

typedef void many(size_t n);

static double least_seconds(many *run, size_t n) {
    double least = INFINITY;
    for (int i = 0; i < 3; i++) {
        /* CPU time, so that other programs do not matter */
        double begin = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
        run(n);
        least = fmin(least, cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - begin);
    }
    return least;
}

static void check_not_quadratic(const char *what, many *run) {
    double few = fmax(least_seconds(run, FEW), FLOOR), more = least_seconds(run, TIMES * FEW);
    CHECK_CASE(more < MOST_TIMES * few, "%s: %d take %.4f s, %d take %.4f s", what, FEW, few,
               TIMES * FEW, more);
}

static size_t *shuffled(size_t n, uint64_t seed) {
    size_t *order = room(n * sizeof *order);
    random_order(&seed, order, n);
    return order;
}

/* Defines a function of n that uses a coordinator with test data, the scene `s`. */
#define MANY(name, n, config)                                                                      \
    static void name##_in(struct scene *s, size_t n);                                              \
    static void name(size_t n) {                                                                   \
        struct scene s;                                                                            \
        scene_open(&s, config);                                                                    \
        name##_in(&s, n);                                                                          \
        scene_close(&s);                                                                           \
    }                                                                                              \
    static void name##_in(struct scene *s, size_t n)
#define WITH(...) CONFIG(2, .fusion_bytes = 4096, .cache_capacity = 1000, __VA_ARGS__)

static void decide_now(struct scene *s, double now) {
    OK(coordinator_decide(s->c, now, NULL, &s->out, ERR));
}

/* Each rank submits in a different order, with random priorities; some tensors can be fused. */
MANY(in_random_order, n, WITH(.stall_failure = 0)) {
    for (int rank = 0; rank < 2; rank++) {
        OWNED size_t *order = shuffled(n, (uint64_t)rank);
        for (size_t i = 0; i < n; i++) {
            struct request r = numbered_request((int)order[i], (int64_t)(order[i] % 100));
            r.priority = (int32_t)(mixed(order[i]) % 1000);
            if (order[i] % 2) r.kind = HVD_ALLGATHER;
            if (order[i] % 4 == 2) r.prescale = (double)order[i];
            says(s, rank, r, 0);
        }
    }
    decide_now(s, 0);
    CHECK(s->out.size > n);
}

/* With a stall limit, and after a rank has left, the coordinator must look at waiting tensors at
 * each decision; this must not take time in proportion to their number. */
MANY(decided_one_by_one, n, WITH(.stall_failure = 1e9)) {
    for (size_t i = 0; i < n; i++) {
        struct request r = numbered_request((int)i, 3);
        says(s, 0, r, (double)i);
        decide_now(s, (double)i);
        if (i == n / 2) coordinator_leave(s->c, 0, "out of data");
    }
    CHECK_INT(s->out.size, 0);
}

/* More tensors are ready than the coordinator may put into batches. Each finished batch makes room
 * for one tensor. */
MANY(decided_late, n,
     CONFIG(1, .fusion_bytes = 4096, .bytes_ahead = 4096, .cache_capacity = 1000)) {
    for (size_t i = 0; i < n; i++) {
        struct request r = numbered_request((int)i, 100);
        r.priority = -(int)i;
        says(s, 0, r, 0);
    }
    for (size_t i = 0; i < n; i++) {
        decide_now(s, 0);
        coordinator_finished(s->c, 0);
    }
}

MANY(all_stall, n, WITH(.stall_failure = 60)) {
    for (size_t i = 0; i < n; i++) {
        struct request r = numbered_request((int)i, 3);
        says(s, i == 0, r, 0);
    }
    decide_now(s, 61);
    CHECK(s->out.size > 100 * n);
}

TEST(test_the_coordinator_is_fast_with_many_pending_tensors) {
    check_not_quadratic("in random order", in_random_order);
    check_not_quadratic("decided one by one", decided_one_by_one);
    check_not_quadratic("decided late", decided_late);
    check_not_quadratic("all stall", all_stall);
}

/* Each tensor is too large to be fused or leaves no room for another tensor. */
static void hardly_fused(size_t n) {
    OWNED struct request *requests = room(n * sizeof *requests);
    OWNED struct fusion_item *list = room(n * sizeof *list);
    OWNED size_t *batch = room(n * sizeof *batch);
    for (size_t i = 0; i < n; i++) {
        requests[i] = numbered_request((int)i, (int64_t)(i % 2 ? 600 : 1000));
        requests[i].root = (int)i;
        if (i % 3) requests[i].kind = HVD_BROADCAST;
        list[i] = (struct fusion_item){&requests[i], request_bytes(&requests[i]), false};
    }
    CHECK(fusion_plan(list, n, 4096, batch) > n / 2);
}

TEST(test_fusion_is_fast_with_many_pending_tensors) {
    check_not_quadratic("hardly fused", hardly_fused);
}

static void completed(void *arg, const hvd_error *error) {
    CHECK(error == NULL);
    free(arg);
}

static struct tensor *new_tensor(size_t i) {
    struct tensor *tensor = room(sizeof *tensor);
    tensor->request = numbered_request((int)i, 1);
    tensor->node = map_node_of(tensor->request.name, tensor);
    tensor->complete = completed;
    tensor->arg = tensor;
    return tensor;
}

/* Finds tensors by ids in random order, as if caches had dropped most of them. */
static void found_by_id(size_t n) {
    struct tensors *t = tensors_new();
    OWNED size_t *order = shuffled(n, 3);
    bool held;
    for (size_t i = 0; i < n; i++) OK(tensors_add(t, new_tensor(i), &held, ERR));
    uint64_t id = 1;
    for (struct tensor *x = tensors_take(t); x; x = x->newer) OK(tensors_set_id(t, x, id++, ERR));
    for (size_t i = 0; i < n; i++) {
        struct tensor *x = tensors_find_id(t, order[i] + 1);
        if (CHECK(x != NULL)) tensors_finish(t, x, NULL);
    }
    tensors_free(t);
}

/* A rank that has joined adds zeros for each tensor. Here the oldest zeros finish first. */
static void zeros(size_t n) {
    struct tensors *t = tensors_new();
    OWNED struct tensor **all = room(n * sizeof *all);
    struct request r = request_of("zeros", 1);
    for (size_t i = 0; i < n; i++) OK(tensors_add_zeros(t, &r, &all[i], ERR));
    for (size_t i = 0; i < n; i++) tensors_finish(t, all[i], NULL);
    tensors_free(t);
}

static void failed(void *arg, const hvd_error *error) {
    CHECK(error != NULL);
    free(arg);
}

/* Failed tensors of one name queue behind each other. */
static void behind_each_other(size_t n) {
    struct tensors *t = tensors_new();
    bool held;
    for (size_t i = 0; i < n; i++) {
        struct tensor *tensor = new_tensor(0);
        tensor->request.failed = true;
        tensor->complete = failed;
        OK(tensors_add(t, tensor, &held, ERR));
    }
    tensors_close(t, &(hvd_error){.code = HVD_TRANSPORT, .text = "down"});
    tensors_free(t);
}

TEST(test_the_tensor_table_is_fast_with_many_tensors) {
    check_not_quadratic("found by id", found_by_id);
    check_not_quadratic("zeros", zeros);
    check_not_quadratic("behind each other", behind_each_other);
}

/* A coordinator's message about n tensors, to a rank that reads it without a pause. */
static void long_message(size_t n) {
    OWNED struct mailbox *box = aligned_alloc(64, sizeof *box);
    OWN(mail_out_free) struct mail_out out = {0};
    OWN(mail_in_free) struct mail_in in = {0};
    size_t bytes = 500 * n, size;
    OWNED void *message = room(bytes), *got = NULL;
    REQUIRE(box);
    memset(box, 0, sizeof *box);
    OK(mailbox_send(box, &out, message, bytes, ERR));
    while (!got) {
        OK(mailbox_flush(box, &out, ERR));
        OK(mailbox_receive(box, &in, &got, &size, ERR));
    }
    CHECK_INT(size, bytes);
}

TEST(test_the_mailbox_is_fast_with_many_messages) {
    check_not_quadratic("a long message", long_message);
}
