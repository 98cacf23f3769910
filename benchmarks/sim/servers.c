/* The simulated parameter server, like MXNet's in synchronous training: see sim.h. The optimizer's
 * work and ps-lite's own messages are not simulated. */
#include "sim.h"

#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <stdio.h>
#include <stdlib.h>

/* MXNet puts a small tensor on server key * HASH % servers. */
enum { BIG = 1000000 /* elements; MXNET_KVSTORE_BIGARRAY_BOUND */, HASH = 9973 };

struct actor {
    struct servers *servers;
    int number;
    /* by tensor, the number of workers that have pushed (server) or of parts pulled (worker) */
    int *parts;
};

int servers_rank_of_worker(const struct servers *s, int worker) {
    return s->apart ? worker : 2 * worker;
}

static int rank_of_server(const struct servers *s, int server) {
    return s->apart ? s->workers + server : 2 * server + 1;
}

static int worker_at(const struct servers *s, int rank) { return s->apart ? rank : rank / 2; }

static bool is_parted(const struct servers *s, int tensor) { return s->elements[tensor] >= BIG; }

/* Returns the number of bytes of a tensor that a server has. */
static size_t part(const struct servers *s, int tensor, int server) {
    size_t many = (size_t)s->many, k = (size_t)server, n = s->elements[tensor];
    if (!is_parted(s, tensor)) return tensor * HASH % s->many == server ? n * sizeof(float) : 0;
    return (n * (k + 1) / many - n * k / many) * sizeof(float);
}

void servers_push(const struct servers *s, int worker, int tensor) {
    for (int k = 0; k < s->many; k++) {
        size_t bytes = part(s, tensor, k);
        if (bytes)
            sim_network_put(s->network, servers_rank_of_worker(s, worker), rank_of_server(s, k),
                            tensor, bytes);
    }
}

static void serve(int argc, char **argv) {
    (void)argc, (void)argv;
    struct actor *a = sg_actor_self_get_data();
    struct servers *s = a->servers;
    int rank = rank_of_server(s, a->number);
    for (;;) {
        int tensor = sim_network_next(s->network, rank);
        if (++a->parts[tensor] < s->workers) continue;
        a->parts[tensor] = 0;
        for (int w = 0; w < s->workers; w++)
            sim_network_put(s->network, rank, servers_rank_of_worker(s, w), tensor,
                            part(s, tensor, a->number));
    }
}

static void pull(int argc, char **argv) {
    (void)argc, (void)argv;
    struct actor *a = sg_actor_self_get_data();
    struct servers *s = a->servers;
    for (;;) {
        int tensor = sim_network_next(s->network, servers_rank_of_worker(s, a->number));
        if (++a->parts[tensor] < (is_parted(s, tensor) ? s->many : 1)) continue;
        a->parts[tensor] = 0;
        s->pulled(a->number, tensor);
    }
}

static void start(struct servers *s, int number, int rank, void (*run)(int, char **)) {
    char name[32];
    snprintf(name, sizeof name, "h%d", worker_at(s, rank));
    struct actor *a = malloc(sizeof *a);
    sg_host_t host = sg_host_by_name(name);
    int *parts = calloc(MOST_TENSORS, sizeof *parts);
    if (!a || !host || !parts) fprintf(stderr, "%s: no host or no memory\n", name), exit(1);
    *a = (struct actor){s, number, parts};
    sg_actor_t actor = sg_actor_init("servers", host);
    sg_actor_set_data(actor, a);
    sg_actor_start(actor, run, 0, NULL);
    sg_actor_daemonize(actor);
}

void servers_start(struct servers *s) {
    for (int w = 0; w < s->workers; w++) start(s, w, servers_rank_of_worker(s, w), pull);
    for (int k = 0; k < s->many; k++) start(s, k, rank_of_server(s, k), serve);
}
