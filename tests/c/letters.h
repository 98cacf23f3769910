/* Letters: sends and receives with known data. */
#ifndef HVDLITE_LETTERS_H
#define HVDLITE_LETTERS_H

#include "engine_case.h"

#include "engine/p2p_state.h"

/* One send or receive; `bytes`: a multiple of the element. */
struct letter {
    hvd_kind kind;
    int peer;
    const char *name;
    int number;
    size_t bytes;
    hvd_dtype dtype;
};

static inline int letter_submit(struct work *l, struct engine_rank *me, struct letter of) {
    size_t n = of.bytes / dtype_size(of.dtype);
    struct coll_case c = {.kind = HVD_BROADCAST, .dtype = of.dtype, .n = n};
    work_init(l, me, c, of.name, true);
    l->tensor.request.kind = of.kind;
    l->tensor.request.root = of.peer;
    memset(l->in, 0, of.bytes);
    if (of.kind == HVD_SEND) fill_mixed(l->in, of.bytes, seed_of(me->rank, of.peer, of.number));
    return work_submit(l, ERR);
}
#define letter_start_of(dtype, l, me, ...) letter_submit(l, me, (struct letter){__VA_ARGS__, dtype})
#define letter_start(...) letter_start_of(HVD_UINT8, __VA_ARGS__)

static inline void check_received(struct work *l, int from, int number) {
    CHECK_INT(l->completions, 1);
    CHECK_CODE(l->error.code, HVD_OK, l->error);
    CHECK_INT(l->tensor.request.root, from);
    CHECK_CASE(is_mixed(l->in, l->in_bytes, seed_of(from, l->owner->rank, number)),
               "%zu bytes from %d", l->in_bytes, from);
}

static inline void check_refused(struct work *l, hvd_code code, const char *what) {
    CHECK_INT(l->completions, 1);
    CHECK_CODE(l->error.code, code, l->error);
    CHECK_HAS(l->error.text, "'x'");
    CHECK_HAS(l->error.text, what);
    work_free(l);
}

#endif
