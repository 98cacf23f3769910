#include "base/types.h"

/* Defines `NAMES`, one of each value below COUNT: a value without a name does not compile. */
#define NAMED(COUNT, ...)                                                                          \
    static const char *const NAMES[] = {__VA_ARGS__};                                              \
    _Static_assert(sizeof NAMES / sizeof *NAMES == COUNT, "each value has a name")

const char *kind_name(int kind) {
    NAMED(HVD_KINDS, "allreduce", "broadcast", "allgather", "reducescatter", "alltoall", "join");
    if (kind == HVD_SEND || kind == HVD_RECV) return kind == HVD_SEND ? "send" : "recv";
    return kind >= 0 && kind < HVD_KINDS ? NAMES[kind] : "?";
}

const char *op_name(int op) {
    NAMED(HVD_OPS, OP_NAMES);
    return op >= 0 && op < HVD_OPS ? NAMES[op] : "?";
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
} DTYPES[] = {{"uint8", 1},    {"int8", 1},    {"int32", 4},   {"int64", 8}, {"float16", 2},
              {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"bool", 1},  {"int16", 2}};
_Static_assert(sizeof DTYPES / sizeof *DTYPES == HVD_DTYPES, "each dtype has a name and a size");

const char *dtype_name(int dtype) {
    return dtype >= 0 && dtype < HVD_DTYPES ? DTYPES[dtype].name : "?";
}

size_t dtype_size(int dtype) { return dtype >= 0 && dtype < HVD_DTYPES ? DTYPES[dtype].size : 0; }
