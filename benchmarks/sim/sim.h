/* The simulated job: the unchanged C core, on threads, a clock and links that SimGrid simulates.
 *
 * clock.c replaces base/os; network.c is a transport; job.c is the program.
 * SimGrid runs one actor at a time and changes to another actor only in a call of SimGrid, so code
 * between two such calls needs no lock. The units are seconds and bytes. */
#ifndef HVDLITE_SIM_H
#define HVDLITE_SIM_H

#include "transport/transport.h"

enum { MOST_TENSORS = 1024 };

/* Costs that the platform file lacks. */
struct sim_costs {
    /* seconds from the sending of a message's last byte until the receiving rank wakes */
    double latency;
    double message, byte; /* CPU seconds per message and per byte, at each of the two ends */
    double wake;          /* CPU seconds to wake from a sleep */
    double memory_byte;   /* CPU seconds per byte that a rank writes to shared memory */
    double call;          /* CPU seconds from a program's call to the engine */
    double burst, rate;   /* bytes that an idle link sends at once; a link's bytes per second */
};

struct sim_counts {        /* between hosts */
    size_t bytes, data;    /* bytes of data, and messages of data */
    size_t sent, received; /* messages of the negotiation */
};

struct sim_network;

/* Keeps the calling actor's core busy. If hosts share a machine's cores, like emulated hosts, the
 * platform file has a host "machine". */
void sim_work(double seconds);

/* Stops a rank forever: its program and its engine's thread. */
void sim_end(void *program_actor);

/* Returns memory that maps the same few MB repeatedly, for contents that do not matter. Exits if
 * there is no memory. */
void *sim_memory(size_t bytes);

/* Makes a network of the hosts h0, h1, ... with equal numbers of ranks. NULL: no memory. */
struct sim_network *sim_network_new(int hosts, int ranks_a_host, const struct sim_costs *costs);
struct transport *sim_network_rank(struct sim_network *n, int rank);
struct sim_counts *sim_network_counts(struct sim_network *n, int rank);

/* Parcels of a parameter server have a tag and a number of bytes, but no contents. put sends a
 * parcel; next waits for a parcel and returns its tag. */
void sim_network_put(struct sim_network *n, int from, int to, int tag, size_t bytes);
int sim_network_next(struct sim_network *n, int rank);

/* A parameter server in place of the core: workers push each gradient, the servers add them and
 * send the sums back. Tensors with more elements than MXNet's bound are divided among servers. */
struct servers {
    int workers, many;
    /* true: servers run on hosts of their own; false: on the hosts of the first workers */
    bool apart;
    struct sim_network *network;
    const size_t *elements;                 /* by tensor */
    void (*pulled)(int worker, int tensor); /* called when a worker has the whole sum */
};

/* Returns a worker's rank in the network. */
int servers_rank_of_worker(const struct servers *s, int worker);
/* Starts the servers and the workers' receiving actors; *s must stay valid. */
void servers_start(struct servers *s);
void servers_push(const struct servers *s, int worker, int tensor);

#endif
