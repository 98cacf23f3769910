#include "base/types.h"

const char *kind_name(int kind) {
    static const char *const NAMES[HVD_KINDS] = {"allreduce",     "broadcast", "allgather",
                                                 "reducescatter", "alltoall",  "join"};
    return kind >= 0 && kind < HVD_KINDS ? NAMES[kind] : "?";
}

const char *dtype_name(int dtype) {
    static const char *const NAMES[HVD_DTYPES] = {"uint8",   "int8",     "int32",   "int64",
                                                  "float16", "bfloat16", "float32", "float64",
                                                  "bool",    "int16"};
    return dtype >= 0 && dtype < HVD_DTYPES ? NAMES[dtype] : "?";
}

const char *op_name(int op) {
    static const char *const NAMES[HVD_OPS] = {"Sum", "Average", "Min", "Max", "Product", "Adasum"};
    return op >= 0 && op < HVD_OPS ? NAMES[op] : "?";
}

const char *codec_name(int codec) {
    static const char *const NAMES[HVD_CODECS] = {"none", "fp16", "bf16", "2bit", "1bit", "topk"};
    return codec >= 0 && codec < HVD_CODECS ? NAMES[codec] : "?";
}

const char *rule_name(int rule) {
    static const char *const NAMES[HVD_RULES] = {"none", "SGD", "SGD with momentum", "NAG", "Adam"};
    return rule >= 0 && rule < HVD_RULES ? NAMES[rule] : "?";
}

size_t dtype_size(int dtype) {
    static const unsigned char SIZES[HVD_DTYPES] = {1, 1, 4, 8, 2, 2, 4, 8, 1, 2};
    return dtype >= 0 && dtype < HVD_DTYPES ? SIZES[dtype] : 0;
}
