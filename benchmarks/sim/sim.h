/* The simulated job: the C core as it is, on threads, a clock and links that SimGrid simulates.
 *
 * clock.c stands for base/clock and base/sync, network.c for a transport; job.c is the program.
 * SimGrid runs one actor at a time, and another only in its own calls: what lies between two of
 * these needs no lock. Seconds and bytes. */
#ifndef HVDLITE_SIM_H
#define HVDLITE_SIM_H

#include "transport/transport.h"

enum { MOST_TENSORS = 1024 };

/* What the platform file does not tell. */
struct sim_costs {
    double latency; /* of a message between hosts, from its last byte out to the rank's wake-up */
    double message, byte; /* of a core: for each message and byte, at each of its two ends */
    double wake;          /* of a core, to go on after a sleep */
    double memory_byte;   /* of a core, for each byte that a rank writes for ranks of its host */
    double call;          /* of a core: from a program's call to the engine */
    double burst, rate; /* bytes that a link which was idle carries at once; a second, of a link */
};

struct sim_counts {        /* between hosts */
    size_t bytes, data;    /* of data, and its messages */
    size_t sent, received; /* messages of the negotiation */
};

struct sim_network;

/* Keeps the calling actor's core busy. Hosts that share a machine's cores, as emulated ones do,
 * have a host "machine" in the platform file. */
void sim_work(double seconds);

/* The program of a rank, and its engine's thread, do nothing any more. */
void sim_end(void *program_actor);

/* Memory of a few MB that repeats: its contents are nothing. Exits if there is none. */
void *sim_memory(size_t bytes);

/* As many ranks on each host, which are h0, h1, ... in the platform. NULL: no memory. */
struct sim_network *sim_network_new(int hosts, int ranks_a_host, const struct sim_costs *costs);
struct transport *sim_network_rank(struct sim_network *n, int rank);
struct sim_counts *sim_network_counts(struct sim_network *n, int rank);

/* Parcels of a parameter server, without contents: a tag and so many bytes. next: waits for one and
 * returns its tag. */
void sim_network_put(struct sim_network *n, int from, int to, int tag, size_t bytes);
int sim_network_next(struct sim_network *n, int rank);

/* A parameter server in place of the core: workers push each gradient, the servers add them and
 * send the sums back. Where there are more elements than MXNet's bound, each server has a part. */
struct servers {
    int workers, many;
    bool apart; /* on hosts of their own, behind those of the workers; else on the first of these */
    struct sim_network *network;
    const size_t *elements;                 /* [tensor] */
    void (*pulled)(int worker, int tensor); /* the whole sum is there */
};

/* Their number in the network. */
int servers_rank_of_worker(const struct servers *s, int worker);
/* Starts the servers and what receives on the workers; *s stays. */
void servers_start(struct servers *s);
void servers_push(const struct servers *s, int worker, int tensor);

#endif
