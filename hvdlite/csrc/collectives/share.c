#include "collectives/algorithm.h"

#include <string.h>

struct shared {
    struct coll_range range;
    coll_work *work;
    const void *arg;
};

static void do_part(const void *arg, int part, int parts) {
    const struct shared *s = arg;
    s->work(s->arg, coll_part_of(s->range, part, parts));
}

void coll_share(const struct comm *comm, size_t bytes, struct coll_range range, coll_work *work,
                const void *arg) {
    helpers_do(comm_helpers(comm), bytes, do_part, &(struct shared){range, work, arg});
}

struct copy {
    char *to;
    const char *from;
};

static void copy_range(const void *arg, struct coll_range range) {
    const struct copy *c = arg;
    memcpy(c->to + range.begin, c->from + range.begin, coll_length(range));
}

void coll_copy(const struct comm *comm, void *to, const void *from, size_t bytes) {
    struct copy copy = {to, from};
    if (bytes) coll_share(comm, bytes, (struct coll_range){0, bytes}, copy_range, &copy);
}
