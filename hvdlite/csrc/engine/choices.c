#include "engine/choices.h"

#include <stdio.h>

/* At the powers of two. */
void choices_text(const struct comm *comm, char *text, size_t size) {
    struct coll_args args = {.kind = HVD_ALLREDUCE, .reduce = reduce_kernels(HVD_FLOAT32, HVD_SUM)};
    const struct coll_algorithm *last = NULL;
    size_t at = 0;
    *text = 0;
    for (args.bytes = 1024; args.bytes <= (size_t)1 << 30 && at < size; args.bytes *= 2) {
        const struct coll_algorithm *row = coll_choose(comm, &args);
        if (last && row != last)
            at += (size_t)snprintf(text + at, size - at, "%s up to %zu KiB, ", last->name,
                                   args.bytes / 2048);
        last = row;
    }
    if (at < size) snprintf(text + at, size - at, "%s%s", at ? "then " : "", last->name);
}
