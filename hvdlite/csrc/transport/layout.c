/* Makes a layout (comm.h): the ranks of each host, and the lanes, with one rank of each host. */
#include "transport/comm.h"

#include <stdlib.h>

/* Gives each host a number, and each rank a number on its host. Sets count[h] to the number of
 * ranks of host h. Returns the smallest count. */
static int number_ranks(struct layout *l, const int *lowest, int size, int *count) {
    int least = size;
    for (int r = 0; r < size; r++) {
        bool first = lowest[r] == r;
        if (first) count[l->hosts] = 0;
        l->host_of[r] = first ? l->hosts++ : l->host_of[lowest[r]];
        l->local_of[r] = count[l->host_of[r]]++;
    }
    for (int h = 0; h < l->hosts; h++) least = count[h] < least ? count[h] : least;
    return least;
}

/* Returns a comm of the `size` ranks that have keys[rank] == key. place[rank] becomes the rank's
 * number in the comm. */
static struct comm comm_of_key(const struct comm *all, const int *keys, int key, const int *place,
                               int size, int *ranks) {
    struct comm comm = {.transport = all->transport, .ranks = ranks, .size = size};
    comm.rank = place[all->rank];
    for (int r = 0; r < all->size; r++)
        if (keys[r] == key) ranks[place[r]] = r;
    return comm;
}

int layout_open(struct layout *l, struct comm *comm, const int *lowest, hvd_error *err) {
    size_t size = (size_t)comm->size;
    *l = (struct layout){.memory = calloc(6 * size, sizeof *l->memory)};
    if (!l->memory) return error_set(err, HVD_NO_MEMORY, "no memory for %d ranks", comm->size);
    l->host_of = l->memory;
    l->local_of = l->host_of + size;
    int *host_ranks = l->local_of + size, *lane_ranks = host_ranks + size;
    int *count = lane_ranks + size;
    l->by_host = count + size;
    l->lanes = number_ranks(l, lowest, comm->size, count);
    for (int h = 0, n = 0; h < l->hosts; h++)
        for (int r = 0; r < comm->size; r++)
            if (l->host_of[r] == h) l->by_host[n++] = r;
    int host = l->host_of[comm->rank], lane = l->local_of[comm->rank];
    l->host = comm_of_key(comm, l->host_of, host, l->local_of, count[host], host_ranks);
    if (lane < l->lanes)
        l->lane = comm_of_key(comm, l->local_of, lane, l->host_of, l->hosts, lane_ranks);
    l->host.hosts = 1;
    l->lane.hosts = l->lane.size;
    comm->hosts = l->hosts;
    comm->layout = l;
    return HVD_OK;
}

hvd_topology layout_topology(const struct layout *l, const struct comm *comm) {
    hvd_topology at = {comm->rank, comm->size, l->host.rank, l->host.size, 0, 0};
    for (int r = 0; r < comm->size; r++) {
        if (l->local_of[r] != at.local_rank) continue;
        at.cross_rank += r < comm->rank;
        at.cross_size++;
    }
    return at;
}

void layout_close(struct layout *l) {
    free(l->memory);
    *l = (struct layout){0};
}
