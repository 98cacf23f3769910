#define _POSIX_C_SOURCE 200809L /* strnlen */
#include "negotiation/request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void request_copy(struct request *to, const struct request *from) {
    size_t dims = (size_t)from->ndim * sizeof *from->dims;
    memcpy(to, from, offsetof(struct request, dims) + dims);
    strcpy(to->name, from->name);
}

static int check_shape(const struct request *r, hvd_error *err) {
    if (r->ndim < 0 || r->ndim > HVD_MAX_DIMS)
        return error_set(err, HVD_UNSUPPORTED, "tensor '%s' has %d dimensions: expected 0 to %d",
                         r->name, r->ndim, HVD_MAX_DIMS);
    uint64_t limit = (uint64_t)INT64_MAX / dtype_size(r->dtype), count = 1;
    for (int i = 0; i < r->ndim; i++) {
        if (r->dims[i] < 0)
            return error_set(err, HVD_INVALID,
                             "tensor '%s' has dimension %d of size %" PRId64
                             ": expected at least 0",
                             r->name, i, r->dims[i]);
        if (r->dims[i] && count > limit / (uint64_t)r->dims[i])
            return error_set(err, HVD_INVALID,
                             "tensor '%s' has more bytes than a 64-bit count holds", r->name);
        count *= (uint64_t)r->dims[i];
    }
    return HVD_OK;
}

/* Fails if a reducescatter or alltoall has no dimension to split. */
static int check_rows(const struct request *r, hvd_error *err) {
    bool deals = r->kind == HVD_REDUCESCATTER || r->kind == HVD_ALLTOALL;
    if (!deals || r->ndim || r->failed) return HVD_OK;
    return error_set(
        err, HVD_INVALID,
        "tensor '%s' is 0-d: expected at least one dimension, because %s splits the first "
        "dimension among the ranks",
        r->name, kind_name(r->kind));
}

static int check_op(const struct request *r, hvd_error *err) {
    if (!request_reduces(r)) return HVD_OK;
    if (r->op == HVD_ADASUM && r->kind != HVD_ALLREDUCE)
        return error_set(err, HVD_UNSUPPORTED,
                         "tensor '%s': op=Adasum is only for an allreduce, not for %s", r->name,
                         kind_name(r->kind));
    if (!op_takes(r->op, r->dtype))
        return error_set(err, HVD_UNSUPPORTED,
                         "tensor '%s' is %s: expected a dtype that op=%s takes, for example %s; "
                         "use another op or cast the tensor",
                         r->name, dtype_name(r->dtype), op_name(r->op),
                         op_takes(r->op, HVD_FLOAT32) ? "float32" : "int32");
    if (!isfinite(r->prescale) || !isfinite(r->postscale))
        return error_set(err, HVD_INVALID,
                         "tensor '%s': prescale_factor %g and postscale_factor %g must be finite",
                         r->name, r->prescale, r->postscale);
    if (r->dtype == HVD_BOOL && (r->op == HVD_AVERAGE || r->prescale != 1 || r->postscale != 1))
        return error_set(err, HVD_UNSUPPORTED,
                         "tensor '%s' is bool, which can't be averaged or scaled: use op=Max "
                         "(logical or) or op=Min (logical and), or cast it to float32",
                         r->name);
    if (r->prescale < 0 && !dtype_sums_below_0(r->dtype))
        return error_set(err, HVD_UNSUPPORTED,
                         "tensor '%s' is %s: expected a prescale_factor of at least 0, got %g; "
                         "use postscale_factor or cast it to int64",
                         r->name, dtype_name(r->dtype), r->prescale);
    return HVD_OK;
}

static int check_codec(const struct request *r, hvd_error *err) {
    if (r->codec.kind == HVD_CODEC_NONE) return HVD_OK;
    HVD_TRY(codec_check(r->codec, r->name, request_count(r), err));
    if (r->kind != HVD_ALLREDUCE || r->dtype != HVD_FLOAT32)
        return error_set(
            err, HVD_UNSUPPORTED,
            "tensor '%s': compression %s is for an allreduce of float32, not for %s of "
            "%s: cast it to float32, or send it uncompressed",
            r->name, codec_name(r->codec.kind), kind_name(r->kind), dtype_name(r->dtype));
    if (r->op != HVD_SUM && r->op != HVD_AVERAGE)
        return error_set(err, HVD_UNSUPPORTED,
                         "tensor '%s': compression %s works with op=Sum or Average, not with %s: "
                         "send the tensor uncompressed",
                         r->name, codec_name(r->codec.kind), op_name(r->op));
    return HVD_OK;
}

static int check_rule(const struct request *r, hvd_error *err) {
    int rule = r->rule & ~REQUEST_DEALT;
    if (r->rule == HVD_RULE_NONE) return HVD_OK;
    if (rule <= HVD_RULE_NONE || rule >= HVD_RULES)
        return error_set(err, HVD_INVALID, "tensor '%s': unknown update rule %d", r->name, rule);
    if (r->kind == HVD_ALLREDUCE && r->dtype == HVD_FLOAT32 && r->op != HVD_ADASUM &&
        r->codec.kind == HVD_CODEC_NONE)
        return HVD_OK;
    return error_set(err, HVD_UNSUPPORTED,
                     "tensor '%s': an update by %s needs an uncompressed allreduce of float32 "
                     "with an op other than Adasum",
                     r->name, rule_name(rule));
}

int request_check(const struct request *r, int size, hvd_error *err) {
    size_t length = strnlen(r->name, HVD_MAX_NAME);
    if (length == 0) return error_set(err, HVD_INVALID, "a tensor needs a name");
    if (length == HVD_MAX_NAME)
        return error_set(err, HVD_INVALID, "the tensor name '%.60s...' is longer than %d bytes",
                         r->name, HVD_MAX_NAME - 1);
    if (r->kind < 0 || r->kind >= HVD_KINDS || r->op < 0 || r->op >= HVD_OPS)
        return error_set(err, HVD_INVALID, "tensor '%s': unknown kind %d or op %d", r->name,
                         r->kind, r->op);
    if (r->kind == HVD_JOIN && strcmp(r->name, "join"))
        return error_set(err, HVD_INVALID, "tensor '%s': a join must have the name 'join'",
                         r->name);
    if (r->delegated < 0 || r->delegated > HVD_ASKS)
        return error_set(err, HVD_INVALID, "tensor '%s': delegated is %d, expected 0 to %d",
                         r->name, (int)r->delegated, HVD_ASKS);
    if (!dtype_size(r->dtype))
        return error_set(err, HVD_UNSUPPORTED, "tensor '%s': unknown dtype %d", r->name, r->dtype);
    if (r->kind == HVD_BROADCAST && (r->root < 0 || r->root >= size))
        return error_set(err, HVD_INVALID,
                         "tensor '%s': root_rank %d is not a rank of this job: expected 0 to %d",
                         r->name, r->root, size - 1);
    HVD_TRY(check_shape(r, err));
    HVD_TRY(check_rows(r, err));
    HVD_TRY(check_op(r, err));
    HVD_TRY(check_codec(r, err));
    return check_rule(r, err);
}

size_t request_count(const struct request *r) {
    size_t count = 1;
    for (int i = 0; i < r->ndim; i++) count *= (size_t)r->dims[i];
    return count;
}

int64_t request_rows(const struct request *r) { return r->ndim ? r->dims[0] : 1; }

size_t request_bytes(const struct request *r) { return request_count(r) * dtype_size(r->dtype); }

size_t request_row_bytes(const struct request *r) {
    size_t bytes = dtype_size(r->dtype);
    for (int i = 1; i < r->ndim; i++) bytes *= (size_t)r->dims[i];
    return bytes;
}

bool request_reduces(const struct request *r) {
    return r->kind == HVD_ALLREDUCE || r->kind == HVD_REDUCESCATTER;
}

bool request_rows_vary(const struct request *r) {
    return r->kind == HVD_ALLGATHER || r->kind == HVD_ALLTOALL;
}

int64_t request_part_rows(const struct request *r, int rank, int size) {
    return request_rows(r) / size + (rank < request_rows(r) % size);
}

static bool same_shape(const struct request *a, const struct request *b, int from) {
    if (a->ndim != b->ndim) return false;
    for (int i = from; i < a->ndim; i++)
        if (a->dims[i] != b->dims[i]) return false;
    return true;
}

bool request_same_codec(const struct request *a, const struct request *b) {
    return a->codec.kind == b->codec.kind && a->codec.parameter == b->codec.parameter;
}

static bool has_loaded(const struct request *r) {
    return r->states > 0 && r->states < HVD_DIVISORS;
}

enum request_field request_conflict(const struct request *a, const struct request *b) {
    if (a->failed || b->failed) return FIELD_FAILED;
    if (a->delegated == HVD_ASKS || b->delegated == HVD_ASKS)
        return a->delegated == b->delegated ? FIELD_NONE : FIELD_DELEGATED;
    if (a->grouped != b->grouped) return FIELD_GROUPED;
    if (a->states != b->states)
        return a->states < 0 || b->states < 0   ? FIELD_CHANGES
               : has_loaded(a) || has_loaded(b) ? FIELD_STATES
                                                : FIELD_DIVISOR;
    if (strcmp(a->call, b->call)) return FIELD_CALL;
    if (a->kind != b->kind) return FIELD_KIND;
    if (!request_same_codec(a, b)) return FIELD_CODEC;
    if (a->rule != b->rule) return FIELD_RULE;
    if (a->dtype != b->dtype) return FIELD_DTYPE;
    if (!same_shape(a, b, request_rows_vary(a) ? 1 : 0)) return FIELD_SHAPE;
    if (request_reduces(a) && a->op != b->op) return FIELD_OP;
    if (request_reduces(a) && (a->prescale != b->prescale || a->postscale != b->postscale))
        return FIELD_SCALES;
    if (a->kind == HVD_BROADCAST && a->root != b->root) return FIELD_ROOT;
    return a->delegated == b->delegated ? FIELD_NONE : FIELD_DELEGATED;
}

bool request_takes_zeros(const struct request *r) {
    return r->kind == HVD_ALLREDUCE && r->rule == HVD_RULE_NONE && !r->delegated &&
           op_takes_zeros(r->op);
}

bool request_can_be_cut(const struct request *r) {
    if (r->delegated) return false;
    return r->kind == HVD_BROADCAST ||
           (r->kind == HVD_ALLREDUCE && r->op != HVD_ADASUM && r->codec.kind == HVD_CODEC_NONE);
}

bool request_same_offset(const struct request *a, const struct request *b) {
    return a->region == b->region && a->offset == b->offset;
}

bool request_same(const struct request *a, const struct request *b) {
    return request_conflict(a, b) == FIELD_NONE && same_shape(a, b, 0) && a->uneven == b->uneven &&
           a->waited == b->waited && request_same_offset(a, b) && strcmp(a->name, b->name) == 0;
}

bool request_same_call(const struct request *r, const struct request *other, int first) {
    const char *member = strrchr(r->name, '[');
    return r->grouped && member && atoi(member + 1) >= first &&
           !strncmp(r->name, other->name, (size_t)(member - r->name) + 1);
}

const char *field_name(enum request_field field) {
    static const char *const NAMES[] = {"nothing",
                                        "data",
                                        "number of tensors",
                                        "parameters changed before this step",
                                        "states loaded before this step",
                                        "batch size of the step, times the loss scale",
                                        "call",
                                        "kind",
                                        "compression",
                                        "update rule",
                                        "dtype",
                                        "shape",
                                        "op",
                                        "prescale_factor and postscale_factor",
                                        "root_rank",
                                        "memory"};
    return NAMES[field];
}

static void shape_text(const struct request *r, char *text, size_t size) {
    size_t used = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < r->ndim && used < size; i++)
        used +=
            (size_t)snprintf(text + used, size - used, i ? ", %" PRId64 : "%" PRId64, r->dims[i]);
    if (used < size) snprintf(text + used, size - used, r->ndim == 1 ? ",)" : ")");
}

static void divisor_text(int32_t states, char *text, size_t size) {
    int32_t bits = (states & (HVD_DIVISORS - 1)) << 1;
    float divisor;
    memcpy(&divisor, &bits, sizeof divisor);
    if (states)
        snprintf(text, size, "%.9g", (double)divisor);
    else
        snprintf(text, size, "the same as in its last step");
}

void field_text(const struct request *r, enum request_field field, char *text, size_t size) {
    switch (field) {
    case FIELD_GROUPED: snprintf(text, size, "%d", r->grouped ? r->grouped : 1); break;
    case FIELD_CHANGES:
        snprintf(text, size, r->states < 0 ? "changed, with digest %x" : "none",
                 (unsigned)-r->states);
        break;
    case FIELD_STATES:
        snprintf(text, size, has_loaded(r) ? "those with digest %x" : "none", (unsigned)r->states);
        break;
    case FIELD_DIVISOR: divisor_text(r->states, text, size); break;
    case FIELD_CALL:
        if (r->call[0])
            snprintf(text, size, "%s", r->call);
        else
            snprintf(text, size, "%s of %s", kind_name(r->kind), dtype_name(r->dtype));
        break;
    case FIELD_KIND: snprintf(text, size, "%s", kind_name(r->kind)); break;
    case FIELD_DELEGATED:
        snprintf(text, size, "%s", r->delegated ? "a GPU's" : "the host's");
        break;
    case FIELD_CODEC: codec_text(r->codec, text, size); break;
    case FIELD_RULE:
        snprintf(text, size, "%s%s", rule_name(r->rule & ~REQUEST_DEALT),
                 r->rule & REQUEST_DEALT ? ", dealt to the hosts" : "");
        break;
    case FIELD_DTYPE: snprintf(text, size, "%s", dtype_name(r->dtype)); break;
    case FIELD_SHAPE: shape_text(r, text, size); break;
    case FIELD_OP: snprintf(text, size, "%s", op_name(r->op)); break;
    case FIELD_SCALES: snprintf(text, size, "%.17g and %.17g", r->prescale, r->postscale); break;
    case FIELD_ROOT: snprintf(text, size, "%d", r->root); break;
    default: snprintf(text, size, "-");
    }
}

void request_text(const struct request *r, char *text, size_t size) {
    char shape[128];
    shape_text(r, shape, sizeof shape);
    snprintf(text, size, "%s '%s' (%s, %s)", kind_name(r->kind), r->name, dtype_name(r->dtype),
             shape);
}
