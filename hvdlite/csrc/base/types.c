#include "base/types.h"

#define NAME(VALUE, TEXT, ...) [HVD_##VALUE] = TEXT,
#define NAMES(...) ((const char *const[]){__VA_ARGS__})

const char *kind_name(int kind) {
    if (kind == HVD_SEND || kind == HVD_RECV) return kind == HVD_SEND ? "send" : "recv";
    return kind >= 0 && kind < HVD_KINDS ? NAMES(KINDS(NAME))[kind] : "?";
}

const char *dtype_name(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? NAMES(DTYPES(NAME))[dtype] : "?";
}

const char *op_name(int op) { return op >= 0 && op < HVD_OPS ? NAMES(OPS(NAME))[op] : "?"; }

const char *codec_name(int codec) {
    return codec >= 0 && codec < HVD_CODECS ? NAMES(CODECS(NAME))[codec] : "?";
}

const char *rule_name(int rule) {
    return rule >= 0 && rule < HVD_RULES ? NAMES(RULES(NAME))[rule] : "?";
}

enum classes { INTEGER = 1, FLOAT = 2, TRUTH = 4, ALL = INTEGER | FLOAT | TRUTH };

static const struct {
    size_t size;
    enum classes class;
    bool has_no_sign; /* true if the accumulator's type is unsigned */
} DTYPE_ROWS[] = {
#define ROW(DTYPE, NAME, TORCH, MXNET, MPI, CLASS, ELEMENT, WIDE, ...)                             \
    [HVD_##DTYPE] = {sizeof(ELEMENT), CLASS, IS_UNSIGNED(WIDE)},
    DTYPES(ROW)
#undef ROW
};
size_t dtype_size(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? DTYPE_ROWS[dtype].size : 0;
}

static enum classes class_of(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? DTYPE_ROWS[dtype].class : INTEGER;
}

bool dtype_is_float(int dtype) { return class_of(dtype) == FLOAT; }

bool dtype_sums_below_0(int dtype) { return !DTYPE_ROWS[dtype].has_no_sign; }

static const struct {
    enum classes classes;
    bool zeros;
} OP_ROWS[] = {
#define ROW(OP, NAME, CLASSES, ZEROS) [HVD_##OP] = {CLASSES, ZEROS},
    OPS(ROW)
#undef ROW
};

bool op_takes(int op, int dtype) { return OP_ROWS[op].classes & class_of(dtype); }

bool op_takes_zeros(int op) { return OP_ROWS[op].zeros; }
