/* The text that tells readers which fields the flight recorder's memory has, at which offsets. */
#include "shm/flight.h"

#include <stdio.h>

struct field {
    const char *name, *format; /* NumPy's notation */
    size_t offset, size;
};

#define FORMAT(x)                                                                                  \
    _Generic((x),                                                                                  \
        uint64_t: "u8",                                                                            \
        int64_t: "i8",                                                                             \
        double: "f8",                                                                              \
        int32_t: "i4",                                                                             \
        uint16_t: "u2",                                                                            \
        int16_t: "i2",                                                                             \
        uint8_t: "u1",                                                                             \
        char *: "S",                                                                               \
        const char *: "S")
#define FIELD(prefix, type, member)                                                                \
    {prefix #member, FORMAT(((const struct type *)0)->member), offsetof(struct type, member),      \
     sizeof(((const struct type *)0)->member)}
#define HEAD(member) FIELD("", flight_memory, member)
#define OP(member) FIELD("op.", flight_op, member)

static const struct field FIELDS[] = {
    HEAD(pid),
    HEAD(rank),
    HEAD(size),
    HEAD(local_rank),
    HEAD(stacks),
    HEAD(host),
    HEAD(job),
    HEAD(transport),
    HEAD(began),
    HEAD(clock_offset),
    HEAD(clock_error),
    HEAD(stats.bytes_sent_network),
    HEAD(stats.bytes_sent_window),
    HEAD(stats.tensors),
    HEAD(stats.batches),
    HEAD(stats.waited),
    HEAD(stats.waits_since),
    HEAD(stats.waits_for),
    HEAD(ops),
    HEAD(steps),
    HEAD(troubles),
    HEAD(trouble),
    HEAD(failed),
    OP(version),
    OP(number),
    OP(bytes),
    OP(batch),
    OP(submitted),
    OP(agreed),
    OP(started),
    OP(ended),
    OP(fused),
    OP(group),
    OP(phase),
    OP(kind),
    OP(dtype),
    OP(waited),
    OP(name),
};

#define NAME(PHASE, TEXT) [FLIGHT_##PHASE] = TEXT,
static const char *const PHASES[] = {FLIGHT_PHASES(NAME)};

/* Writes the names of the values of op.phase and op.kind: "phase.1 waits;". */
static size_t add_names(char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; i <= FLIGHT_FAILED; i++)
        used += (size_t)snprintf(text + used, size - used, "phase.%d %s;", i, PHASES[i]);
    for (int i = 0; i <= HVD_RECV; i++)
        if (i < HVD_KINDS || i >= HVD_SEND)
            used += (size_t)snprintf(text + used, size - used, "kind.%d %s;", i, kind_name(i));
    return used + (size_t)snprintf(text + used, size - used, "kind.%d alone;", FLIGHT_ALONE);
}

/* The complete text must be shorter than `size`; tests/c/test_flight.c checks this. */
void flight_layout(char *text, size_t size) {
    size_t used =
        (size_t)snprintf(text, size, FLIGHT_FORMAT ";bytes %zu;ring %zu;ops %d;op %zu;",
                         sizeof(struct flight_memory), offsetof(struct flight_memory, ring),
                         (int)FLIGHT_OPS, sizeof(struct flight_op));
    used += add_names(text + used, size - used);
    for (size_t i = 0; i < sizeof FIELDS / sizeof *FIELDS && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s %s@%zu:%zu;", FIELDS[i].name,
                                 FIELDS[i].format, FIELDS[i].offset, FIELDS[i].size);
}
