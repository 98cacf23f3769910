#include "base/types.h"

/* Defines NAMES, one name for each value below COUNT. If a name is missing, compiling fails. */
#define NAMED(COUNT, ...)                                                                          \
    static const char *const NAMES[] = {__VA_ARGS__};                                              \
    _Static_assert(sizeof NAMES / sizeof *NAMES == COUNT, "each value must have a name")

const char *kind_name(int kind) {
    NAMED(HVD_KINDS, "allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "join");
    if (kind == HVD_SEND || kind == HVD_RECV) return kind == HVD_SEND ? "send" : "recv";
    return kind >= 0 && kind < HVD_KINDS ? NAMES[kind] : "?";
}

const char *codec_name(int codec) {
    NAMED(HVD_CODECS, "none", "fp16", "bf16", "2bit", "1bit", "topk");
    return codec >= 0 && codec < HVD_CODECS ? NAMES[codec] : "?";
}

const char *rule_name(int rule) {
    NAMED(HVD_RULES, "none", "SGD", "SGD with momentum", "NAG", "Adam");
    return rule >= 0 && rule < HVD_RULES ? NAMES[rule] : "?";
}

enum classes { INTEGER = 1, FLOAT = 2, TRUTH = 4, ALL = INTEGER | FLOAT | TRUTH };

static const struct {
    const char *name;
    size_t size;
    enum classes class;
    bool has_no_sign; /* true if the accumulator's type is unsigned */
} DTYPE_ROWS[] = {
#define ROW(DTYPE, NAME, CLASS, ELEMENT, WIDE, ...)                                                \
    [HVD_##DTYPE] = {NAME, sizeof(ELEMENT), CLASS, IS_UNSIGNED(WIDE)},
    DTYPES(ROW)
#undef ROW
};
#define ONE(...) +1
_Static_assert(0 DTYPES(ONE) == HVD_DTYPES, "each dtype must have a row");

const char *dtype_name(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? DTYPE_ROWS[dtype].name : "?";
}

size_t dtype_size(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? DTYPE_ROWS[dtype].size : 0;
}

static enum classes class_of(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? DTYPE_ROWS[dtype].class : INTEGER;
}

bool dtype_is_float(int dtype) { return class_of(dtype) == FLOAT; }

bool dtype_sums_below_0(int dtype) { return !DTYPE_ROWS[dtype].has_no_sign; }

static const struct {
    const char *name;
    enum classes takes;
} OP_ROWS[] = {
#define ROW(...) {__VA_ARGS__},
    OPS(ROW)
#undef ROW
};
_Static_assert(sizeof OP_ROWS / sizeof *OP_ROWS == HVD_OPS, "each op must have a row");

const char *op_name(int op) { return op >= 0 && op < HVD_OPS ? OP_ROWS[op].name : "?"; }

bool op_takes(int op, int dtype) { return OP_ROWS[op].takes & class_of(dtype); }
