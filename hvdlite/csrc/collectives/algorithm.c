#include "collectives/algorithm.h"

struct coll_range coll_chunk(size_t bytes, size_t element, int n, int chunk) {
    size_t count = bytes / element, each = count / (size_t)n, longer = count % (size_t)n,
           i = (size_t)chunk;
    size_t begin = i * each + (i < longer ? i : longer);
    return (struct coll_range){begin * element, (begin + each + (i < longer)) * element};
}

struct coll_range coll_segment(struct coll_range range, size_t length, size_t k) {
    size_t begin = range.begin + k * length;
    if (begin >= range.end) return (struct coll_range){range.end, range.end};
    return (struct coll_range){begin, begin + length < range.end ? begin + length : range.end};
}

struct coll_range coll_overlap(struct coll_range chunk, size_t begin, size_t bytes) {
    size_t from = chunk.begin > begin ? chunk.begin - begin : 0;
    size_t to = chunk.end > begin ? chunk.end - begin : 0;
    if (to > bytes) to = bytes;
    return (struct coll_range){from < to ? from : to, to};
}

struct coll_range coll_part_of(struct coll_range range, int part, int parts) {
    enum { LINE = 64 };
    size_t bytes = coll_length(range), lines = coll_segments(bytes, LINE), n = (size_t)parts;
    size_t begin = lines * (size_t)part / n * LINE, end = lines * ((size_t)part + 1) / n * LINE;
    if (begin > bytes) begin = bytes;
    if (end > bytes) end = bytes;
    return (struct coll_range){range.begin + begin, range.begin + end};
}

struct coll_fold coll_fold(int size) {
    int positions = 1;
    while (2 * positions <= size) positions *= 2;
    return (struct coll_fold){positions, size - positions};
}

int coll_fold_rank(struct coll_fold fold, int position) {
    return position < fold.pairs ? 2 * position + 1 : position + fold.pairs;
}

int coll_fold_position(struct coll_fold fold, int rank) {
    if (rank >= 2 * fold.pairs) return rank - fold.pairs;
    return rank % 2 ? rank / 2 : COLL_SITS_OUT;
}

int coll_meet(const struct comm *host, hvd_error *err) {
    struct window *w = host->window;
    if (host->size == 1) return HVD_OK;
    window_raise(w, WINDOW_STAGED, w->rounds);
    window_raise(w, WINDOW_REDUCED, w->rounds);
    HVD_TRY(comm_wait_flags(host, WINDOW_REDUCED, w->rounds, err));
    window_raise(w, WINDOW_TAKEN, w->rounds++);
    return HVD_OK;
}
