#include "base/types.h"

/* Defines `NAMES`, the names of all values below COUNT. A value without a name does not compile. */
#define NAMED(COUNT, ...)                                                                          \
    static const char *const NAMES[] = {__VA_ARGS__};                                              \
    _Static_assert(sizeof NAMES / sizeof *NAMES == COUNT, "each value has a name")

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

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} DTYPES[] = {[HVD_UINT8] = {"uint8", 1, false},    [HVD_INT8] = {"int8", 1, false},
              [HVD_INT32] = {"int32", 4, false},    [HVD_INT64] = {"int64", 8, false},
              [HVD_FLOAT16] = {"float16", 2, true}, [HVD_BFLOAT16] = {"bfloat16", 2, true},
              [HVD_FLOAT32] = {"float32", 4, true}, [HVD_FLOAT64] = {"float64", 8, true},
              [HVD_BOOL] = {"bool", 1, false},      [HVD_INT16] = {"int16", 2, false}};
_Static_assert(sizeof DTYPES / sizeof *DTYPES == HVD_DTYPES, "each dtype has a row");

const char *dtype_name(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? DTYPES[dtype].name : "?";
}

size_t dtype_size(int dtype) { return dtype >= 0 && dtype < HVD_DTYPES ? DTYPES[dtype].size : 0; }

bool dtype_is_float(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES && DTYPES[dtype].is_float;
}

enum dtypes { INTEGERS = 1, FLOATS = 2, ALL = INTEGERS | FLOATS }; /* bool counts as an integer */

static const struct {
    const char *name;
    enum dtypes takes;
} OP_ROWS[] = {
#define ROW(...) {__VA_ARGS__},
    OPS(ROW)
#undef ROW
};
_Static_assert(sizeof OP_ROWS / sizeof *OP_ROWS == HVD_OPS, "each op has a row");

const char *op_name(int op) { return op >= 0 && op < HVD_OPS ? OP_ROWS[op].name : "?"; }

bool op_takes(int op, int dtype) {
    return OP_ROWS[op].takes & (dtype_is_float(dtype) ? FLOATS : INTEGERS);
}
