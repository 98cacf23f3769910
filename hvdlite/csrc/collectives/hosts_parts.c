/* Collectives of the ranks' parts in two levels: each rank's part is sent to each host once.
 *
 * The parts of a host's ranks are the host's block, which is cut into one chunk per lane. A rank's
 * lane memory has the chunks of its lane from all hosts. p = 4, hosts {a, b} and {c, d}; ab0 is the
 * first half of the parts of a and b together:
 *
 *   allgather       the host gathers its block; the lane gathers chunks: a then has ab0 and cd0, b
 *                   has ab1 and cd1; the host gathers lane memories and puts the parts in order
 *   reducescatter   the input is put in the order of lanes; the host sums: a gets ab0 and cd0, b
 *                   gets ab1 and cd1; the lane of a and c sums: a gets ab0, c gets cd0; the host
 *                   gathers its block; each rank takes its part
 *
 * For any placement of ranks, each of h hosts sends only data that other hosts do not have: (h-1)/h
 * S bytes. Cost: the lane's algorithm for S / lanes bytes, two passes of the window, and two more
 * copies. If a dtype is narrower than its accumulator, results are rounded twice, as in hosts.c. */
#include "collectives/hosts.h"

#include <string.h>

struct blocks {
    const struct layout *l;
    const size_t *end; /* by rank: end of the rank's part; parts are in the order of ranks */
    int size;          /* number of ranks */
    size_t element;    /* bytes of an element; chunks contain whole elements */
    size_t *block;     /* by host: bytes of the host's block */
    /* by local rank: end of the rank's part, of its chunk, or of the chunks of its lane */
    size_t *local_end;
    size_t *host_end; /* by host: end of the host's chunk in the lane memory */
};

static struct coll_range chunk_of(const struct blocks *b, int host, int lane) {
    if (lane >= b->l->lanes) return (struct coll_range){0, 0};
    return coll_chunk(b->block[host], b->element, b->l->lanes, lane);
}

static size_t lane_bytes(const struct blocks *b, int lane) {
    size_t bytes = 0;
    for (int h = 0; h < b->l->hosts; h++) bytes += coll_length(chunk_of(b, h, lane));
    return bytes;
}

/* The arguments of copy_all, for copy_range. */
struct copies {
    const struct blocks *b;
    char *parts, *lanes;
    bool to_lanes;
};

/* Copies the part of a chunk that lies in `range`. `lane`: offset of the chunk in c->lanes;
 * `range` is a range of c->lanes, too. */
static void copy_chunk(const struct copies *c, struct coll_range range, int host,
                       struct coll_range chunk, size_t lane) {
    const struct blocks *b = c->b;
    size_t at = 0; /* offset in the block */
    for (int r = 0; r < b->size; r++) {
        if (b->l->host_of[r] != host) continue;
        struct coll_range part = coll_part(b->end, r);
        size_t end = at + coll_length(part), from = at > chunk.begin ? at : chunk.begin;
        size_t to = end < chunk.end ? end : chunk.end;
        if (from < to) {
            struct coll_range own = coll_overlap(range, lane, to - from);
            char *data = c->parts + part.begin + (from - at) + own.begin;
            char *in_lane = c->lanes + lane + own.begin;
            memcpy(c->to_lanes ? in_lane : data, c->to_lanes ? data : in_lane, coll_length(own));
            lane += to - from;
        }
        at = end;
    }
}

static void copy_range(const void *arg, struct coll_range range) {
    const struct copies *c = arg;
    size_t at = 0;
    for (int lane = 0; lane < c->b->l->lanes; lane++) {
        for (int h = 0; h < c->b->l->hosts; h++) {
            struct coll_range chunk = chunk_of(c->b, h, lane);
            copy_chunk(c, range, h, chunk, at);
            at += coll_length(chunk);
        }
    }
}

/* Copies between `parts`, in the order of ranks, and `lanes`, in the order of lanes. */
static void copy_all(const struct blocks *b, char *parts, char *lanes, bool to_lanes) {
    size_t bytes = b->end[b->size - 1];
    coll_share(&b->l->host, bytes, (struct coll_range){0, bytes}, copy_range,
               &(struct copies){b, parts, lanes, to_lanes});
}

typedef size_t length_function(const struct blocks *b, int i);

/* Computes the n ends from the lengths; returns the largest length. */
static size_t fill_ends(const struct blocks *b, size_t *ends, int n, length_function *length) {
    size_t at = 0, longest = 0;
    for (int i = 0; i < n; i++) {
        size_t bytes = length(b, i);
        longest = bytes > longest ? bytes : longest;
        ends[i] = at += bytes;
    }
    return longest;
}

static int own_host(const struct blocks *b) {
    return b->l->host_of[b->l->host.ranks[b->l->host.rank]];
}

static size_t part_length(const struct blocks *b, int local_rank) {
    return coll_length(coll_part(b->end, b->l->host.ranks[local_rank]));
}
static size_t chunk_length(const struct blocks *b, int local_rank) {
    return coll_length(chunk_of(b, own_host(b), local_rank));
}
static size_t lane_chunk_length(const struct blocks *b, int host) {
    return coll_length(chunk_of(b, host, b->l->host.rank));
}

/* Gathers the data of the host's ranks; `length` returns each rank's bytes. */
static int gather_on_host(const struct blocks *b, const struct coll_args *args,
                          length_function *length, const void *in, void *out, hvd_error *err) {
    size_t longest = fill_ends(b, b->local_end, b->l->host.size, length);
    return coll_hosts_gather(b->l, args, in, out, b->local_end, longest, err);
}

static struct coll_args lane_args(const struct blocks *b, const struct coll_args *args,
                                  const void *in, void *out) {
    struct coll_args lane = *args;
    lane.longest = fill_ends(b, b->host_end, b->l->hosts, lane_chunk_length);
    lane.bytes = b->host_end[b->l->hosts - 1];
    lane.in = in;
    lane.data = out;
    lane.in_end = lane.part_end = b->host_end;
    return lane;
}

/* Gets the memory of a collective: the arrays of `b` and four buffers. */
static int open_blocks(struct blocks *b, const struct comm *comm, const struct coll_args *args,
                       const size_t *end, char *buffers[4], hvd_error *err) {
    size_t hosts = (size_t)comm->layout->hosts, locals = (size_t)comm->layout->host.size;
    size_t arrays = (2 * hosts + locals) * sizeof(size_t);
    void *memory;
    HVD_TRY(scratch_get(args->outer, arrays + 4 * (args->bytes + 64), &memory, err));
    *b = (struct blocks){.l = comm->layout, .end = end, .size = comm->size, .element = 1};
    b->block = memory;
    b->host_end = b->block + hosts;
    b->local_end = b->host_end + hosts;
    for (int i = 0; i < 4; i++)
        buffers[i] = (char *)memory + arrays + (size_t)i * ((args->bytes + 63) & ~(size_t)63);
    memset(b->block, 0, hosts * sizeof *b->block);
    for (int r = 0; r < comm->size; r++)
        b->block[b->l->host_of[r]] += coll_length(coll_part(end, r));
    return HVD_OK;
}

int coll_hosts_allgather(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct blocks b;
    char *buffers[4];
    HVD_TRY(open_blocks(&b, comm, args, args->part_end, buffers, err));
    char *block = buffers[0], *lane = buffers[1], *lanes = buffers[2];
    HVD_TRY(gather_on_host(&b, args, part_length, args->in, block, err));
    if (b.l->lane.size) {
        struct coll_range own = chunk_of(&b, own_host(&b), b.l->host.rank);
        struct coll_args across = lane_args(&b, args, block + own.begin, lane);
        HVD_TRY(coll_run(&b.l->lane, &across, err));
    }
    HVD_TRY(gather_on_host(&b, args, lane_bytes, lane, lanes, err));
    copy_all(&b, args->data, lanes, false);
    return HVD_OK;
}

int coll_hosts_reducescatter(const struct comm *comm, const struct coll_args *args,
                             hvd_error *err) {
    struct blocks b;
    char *buffers[4];
    HVD_TRY(open_blocks(&b, comm, args, args->in_end, buffers, err));
    b.element = args->reduce->size;
    char *lanes = buffers[0], *lane = buffers[1], *chunk = buffers[2], *block = buffers[3];
    copy_all(&b, (char *)args->in, lanes, true);
    struct coll_args host = *args;
    host.in = lanes;
    host.data = lane;
    host.longest = fill_ends(&b, b.local_end, b.l->host.size, lane_bytes);
    host.in_end = b.local_end;
    host.final = coll_final_on_host(args);
    HVD_TRY(coll_run(&b.l->host, &host, err));
    if (b.l->lane.size) {
        struct coll_args across = lane_args(&b, args, lane, chunk);
        across.prescale = 1;
        across.final = coll_final_on_lane(args);
        HVD_TRY(coll_run(&b.l->lane, &across, err));
    }
    HVD_TRY(gather_on_host(&b, args, chunk_length, chunk, block, err));
    fill_ends(&b, b.local_end, b.l->host.size, part_length);
    struct coll_range own = coll_part(b.local_end, b.l->host.rank);
    coll_copy(&b.l->host, args->data, block + own.begin, coll_length(own));
    return HVD_OK;
}
