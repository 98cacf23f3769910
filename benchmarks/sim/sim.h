/* The simulated job: the C core as it is, on threads, a clock and links that SimGrid simulates.
 *
 * clock.c stands for base/clock and base/sync, network.c for a transport; job.c is the program.
 * SimGrid runs one actor at a time, and another only in its own calls: what lies between two of
 * these needs no lock. Seconds and bytes. */
#ifndef HVDLITE_SIM_H
#define HVDLITE_SIM_H

#include "transport/transport.h"

enum { MOST_TENSORS = 1024 };

/* Costs that the platform file lacks. */
struct sim_costs {
    /* seconds from sending a message's last byte to the wake-up of the receiving rank */
    double latency;
    double message, byte; /* CPU seconds per message and per byte, at each of the two ends */
    double wake;          /* CPU seconds to wake from a sleep */
    double memory_byte;   /* CPU seconds per byte that a rank writes to memory of its host */
    double call;          /* CPU seconds from a program's call to the engine */
    double burst, rate;   /* bytes that an idle link passes at once; bytes a second of a link */
};

struct sim_counts {        /* between hosts */
    size_t bytes, data;    /* bytes of data, and messages of data */
    size_t sent, received; /* messages of the negotiation */
};

struct sim_network;

/* Keeps the calling actor's core busy. Hosts that share a machine's cores, as emulated ones do,
 * have a host "machine" in the platform file. */
void sim_work(double seconds);

/* Stops a rank for ever: its program and its engine's thread. */
void sim_end(void *program_actor);

/* Memory whose few MB repeat, for contents that don't matter. Exits if there is none. */
void *sim_memory(size_t bytes);

/* A network of hosts h0, h1, ... of the platform, with equally many ranks each. NULL: no memory. */
struct sim_network *sim_network_new(int hosts, int ranks_a_host, const struct sim_costs *costs);
struct transport *sim_network_rank(struct sim_network *n, int rank);
struct sim_counts *sim_network_counts(struct sim_network *n, int rank);

/* Parcels of a parameter server, without contents: a tag and a number of bytes. next: waits for
 * a parcel and returns its tag. */
void sim_network_put(struct sim_network *n, int from, int to, int tag, size_t bytes);
int sim_network_next(struct sim_network *n, int rank);

/* A parameter server in place of the core: workers push each gradient, the servers add them and
 * send the sums back. Where there are more elements than MXNet's bound, each server has a part. */
struct servers {
    int workers, many;
    /* true: on hosts after those of the workers; false: on the first hosts of the workers */
    bool apart;
    struct sim_network *network;
    const size_t *elements;                 /* by tensor */
    void (*pulled)(int worker, int tensor); /* called when a worker has the whole sum */
};

/* The rank in the network of a worker. */
int servers_rank_of_worker(const struct servers *s, int worker);
/* Starts the servers and the workers' receiving actors; *s must stay valid. */
void servers_start(struct servers *s);
void servers_push(const struct servers *s, int worker, int tensor);

#endif
