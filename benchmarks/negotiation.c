/* What the negotiation costs the coordinator: messages and CPU time of rank 0 by the number of
 * ranks, with ranks as threads of this process. `make bench-negotiation` builds and runs it.
 *
 * Every rank submits the same TENSORS tensors of no bytes, one after the other, so that the
 * coordinator hears and decides each alone and nothing but messages is counted. All ranks on one
 * host: rank 0 talks to each rank; several hosts: by the tree (negotiation/tree.h). */
#define _GNU_SOURCE
#include "base/clock.h"
#include "engine/engine.h"
#include "transport/transport_local.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TENSORS = 200, WARM = 20, MOST = 1024 };

struct node {
    struct engine *engine;
    struct tensor tensor;
};

/* Of rank 0's engine thread, which alone writes it. */
static struct {
    const struct transport_ops *real;
    struct transport_ops ops;
    atomic_size_t sent, received;
    _Atomic double cpu; /* seconds, when it last looked for messages */
} counted;

static struct monitor monitor; /* guards `running` */
static int running;

static int count_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    atomic_fetch_add(&counted.sent, 1);
    return counted.real->send(t, to, data, size, err);
}

static int count_receive(struct transport *t, struct message *message, hvd_error *err) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    atomic_store(&counted.cpu, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec);
    int code = counted.real->receive(t, message, err);
    if (message->data) atomic_fetch_add(&counted.received, 1);
    return code;
}

static void completed(void *arg, const hvd_error *error) {
    (void)arg;
    if (error) fprintf(stderr, "%s\n", error->text);
    if (error) exit(1);
    monitor_lock(&monitor);
    running--;
    monitor_notify(&monitor);
    monitor_unlock(&monitor);
}

static void require(int code, const hvd_error *err) {
    if (!code) return;
    fprintf(stderr, "%s\n", err->text);
    exit(1);
}

static void submit_everywhere(struct node *nodes, int size) {
    hvd_error err = {0};
    running = size;
    for (int r = 0; r < size; r++) {
        struct tensor *tensor = &nodes[r].tensor;
        *tensor = (struct tensor){.complete = completed};
        tensor->request = (struct request){
            .kind = HVD_ALLREDUCE, .ndim = 1, .prescale = 1, .postscale = 1, .name = "gradient"};
        require(engine_submit(nodes[r].engine, tensor, &err), &err);
    }
    monitor_lock(&monitor);
    while (running > 0) monitor_wait(&monitor, 1);
    monitor_unlock(&monitor);
}

static void end_all(struct node *nodes, int size) {
    for (int r = 0; r < size; r++) engine_leave(nodes[r].engine, "done");
    for (int r = 0; r < size; r++)
        while (!engine_ended(nodes[r].engine, 1)) {
        }
    for (int r = 0; r < size; r++) engine_stop(nodes[r].engine);
}

/* per_host 0: all on one. */
static void measure(int size, int per_host) {
    static struct node nodes[MOST];
    const struct engine_config config = {.cache_capacity = 100, .log = {.level = LOG_OFF}};
    struct local_hub *hub = local_hub_new(size, per_host);
    hvd_error err = {0};
    if (!hub) exit(1);
    struct transport *first = local_hub_rank(hub, 0);
    counted.real = first->ops;
    counted.ops = *first->ops;
    counted.ops.send = count_send;
    counted.ops.receive = count_receive;
    first->ops = &counted.ops;
    for (int r = 0; r < size; r++)
        require(engine_start(&nodes[r].engine, local_hub_rank(hub, r), &config, &err), &err);
    for (int i = 0; i < WARM; i++) submit_everywhere(nodes, size);
    size_t sent = atomic_load(&counted.sent), received = atomic_load(&counted.received);
    double cpu = atomic_load(&counted.cpu), began = clock_now();
    for (int i = 0; i < TENSORS; i++) submit_everywhere(nodes, size);
    double wall = clock_now() - began;
    printf("| %d | %d | %.1f | %.1f | %.3f | %.2f |\n", size, per_host ? size / per_host : 1,
           (double)(atomic_load(&counted.received) - received) / TENSORS,
           (double)(atomic_load(&counted.sent) - sent) / TENSORS,
           1e3 * (atomic_load(&counted.cpu) - cpu) / TENSORS, 1e3 * wall / TENSORS);
    fflush(stdout);
    end_all(nodes, size);
    local_hub_free(hub);
}

int main(void) {
    static const int SIZES[] = {64, 256};
    monitor_init(&monitor);
    puts(
        "| ranks | hosts | messages heard by rank 0 | messages sent by rank 0 | CPU of rank 0, ms |"
        " all ranks, ms |");
    puts("| --: | --: | --: | --: | --: | --: |");
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        measure(SIZES[i], 0);
        measure(SIZES[i], 8);
    }
    monitor_destroy(&monitor);
    return 0;
}
