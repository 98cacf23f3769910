/* Letters: sends and receives with known data. */
#ifndef HVDLITE_LETTERS_H
#define HVDLITE_LETTERS_H

#include "engine_case.h"

#include "engine/p2p_state.h"

static inline unsigned char value_of(int from, int to, int number, size_t i) {
    return (unsigned char)((size_t)from * 7 + (size_t)to * 13 + (size_t)number * 31 + i);
}

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
    for (size_t i = 0; i < of.bytes; i++)
        l->in[i] = of.kind == HVD_SEND ? value_of(me->rank, of.peer, of.number, i) : 0;
    return work_submit(l, ERR);
}
#define letter_start_of(dtype, l, me, ...) letter_submit(l, me, (struct letter){__VA_ARGS__, dtype})
#define letter_start(...) letter_start_of(HVD_UINT8, __VA_ARGS__)

static inline void check_received(struct work *l, int from, int number) {
    int self = l->owner->rank;
    CHECK_INT(l->completions, 1);
    CHECK_CODE(l->error.code, HVD_OK, l->error);
    CHECK_INT(l->tensor.request.root, from);
    size_t i = 0;
    while (i < l->in_bytes && l->in[i] == value_of(from, self, number, i)) i++;
    CHECK_CASE(i == l->in_bytes, "byte %zu of %zu from %d", i, l->in_bytes, from);
}

static inline void check_refused(struct work *l, hvd_code code, const char *what) {
    CHECK_INT(l->completions, 1);
    CHECK_CODE(l->error.code, code, l->error);
    CHECK_HAS(l->error.text, "'x'");
    CHECK_HAS(l->error.text, what);
    work_free(l);
}

#endif
