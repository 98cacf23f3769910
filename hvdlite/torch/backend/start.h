// Start: starts the C core's collectives on PyTorch's tensors, for one operation.
//
// The core moves elements of any dtype, but reduces only elements of its own dtypes. Elements of
// another dtype move as bytes.
#pragma once

#include "operation.h"

#include <torch/csrc/distributed/c10d/Types.hpp>

namespace hvdlite {

using c10d::ReduceOp;

constexpr int NO_TYPE = -1, NO_OP = -1, FOLD = -2;

inline int type_of(at::ScalarType type) {
    switch (type) {
#define ROW(DTYPE, NAME, TORCH, ...)                                                               \
    case at::ScalarType::TORCH: return HVD_##DTYPE;
        DTYPES(ROW)
#undef ROW
    default: return NO_TYPE;
    }
}

inline bool moves(const at::Tensor &t) {
    return (t.is_cpu() || t.is_cuda()) && t.layout() == at::kStrided && !t.is_quantized();
}

// Returns the core's op for this tensor. FOLD: the core lacks the op, so the ranks gather all
// ranks' tensors, and each rank reduces these tensors. NO_OP: only Gloo can reduce the tensor.
inline int op_on(const at::Tensor &t, const ReduceOp &reduction) {
    auto op = static_cast<ReduceOp::RedOpType>(reduction);
    bool of_bits = op == ReduceOp::BAND || op == ReduceOp::BOR || op == ReduceOp::BXOR;
    bool inexact = t.is_floating_point() || t.is_complex(), truths = t.scalar_type() == at::kBool;
    bool complex = t.scalar_type() == at::kComplexFloat || t.scalar_type() == at::kComplexDouble;
    if (!moves(t) || (of_bits && inexact)) return NO_OP;
    if (op == ReduceOp::BXOR || (of_bits && !truths)) return FOLD;
    if (!complex && type_of(t.scalar_type()) == NO_TYPE) return NO_OP;
    switch (op) {
    case ReduceOp::SUM: return truths ? HVD_MAX : HVD_SUM;
    case ReduceOp::AVG: return inexact ? HVD_AVERAGE : truths ? NO_OP : FOLD;
    case ReduceOp::MIN: return complex ? NO_OP : HVD_MIN;
    case ReduceOp::MAX: return complex ? NO_OP : HVD_MAX;
    case ReduceOp::PRODUCT: return complex ? FOLD : truths ? HVD_MIN : HVD_PRODUCT;
    case ReduceOp::BAND: return HVD_MIN; // bools only
    case ReduceOp::BOR: return HVD_MAX;
    default: return NO_OP;
    }
}

inline bool all_move(const Tensors &tensors) {
    return std::all_of(tensors.begin(), tensors.end(), moves);
}

inline int op_on(const Tensors &tensors, const ReduceOp &reduction) {
    int op = tensors.empty() ? NO_OP : op_on(tensors[0], reduction);
    auto same = [&](const at::Tensor &t) { return op_on(t, reduction) == op; };
    return std::all_of(tensors.begin(), tensors.end(), same) ? op : NO_OP;
}

// Returns the name of an op that is FOLD.
inline const char *name_of(const ReduceOp &reduction) {
    switch (static_cast<ReduceOp::RedOpType>(reduction)) {
    case ReduceOp::BAND: return "BAND";
    case ReduceOp::BOR: return "BOR";
    case ReduceOp::BXOR: return "BXOR";
    case ReduceOp::AVG: return "AVG";
    default: return "PRODUCT";
    }
}

// Returns one row: the reduction of all rows of a matrix. Overwrites the matrix.
inline at::Tensor fold(const at::Tensor &rows, const ReduceOp &reduction) {
    at::Tensor all = rows[0];
    for (int64_t i = 1; i < rows.size(0); i++) {
        switch (static_cast<ReduceOp::RedOpType>(reduction)) {
        case ReduceOp::BAND: all.bitwise_and_(rows[i]); break;
        case ReduceOp::BOR: all.bitwise_or_(rows[i]); break;
        case ReduceOp::BXOR: all.bitwise_xor_(rows[i]); break;
        case ReduceOp::AVG: all.add_(rows[i]); break;
        default: all.mul_(rows[i]);
        }
    }
    // truncates integers, as NCCL does
    if (reduction == ReduceOp::AVG) all.div_(rows.size(0), "trunc");
    return all;
}

// Returns the tensor on the host, without gaps. Calls resolve_conj() and resolve_neg() only if they
// are needed, because PyTorch's dispatch costs time even if a call does nothing.
inline at::Tensor dense(const at::Tensor &t) {
    bool plain = !t.is_conj() && !t.is_neg();
    return to_host((plain ? t : t.resolve_conj().resolve_neg()).contiguous());
}

inline int64_t total(const Tensors &tensors) {
    int64_t number = 0;
    for (const at::Tensor &t : tensors) number += t.numel();
    return number;
}

// Returns one tensor that views all tensors, if they follow each other in memory, as the results of
// chunk() do. Returns an undefined tensor if there are gaps, or if one of `others` uses the memory.
inline at::Tensor adjacent(const Tensors &tensors, const Tensors &others) {
    auto plain = [](const at::Tensor &t) {
        return t.is_contiguous() && !t.is_conj() && !t.is_neg() && !is_staged(t);
    };
    if (tensors.empty() || !tensors[0].has_storage()) return {};
    const at::Tensor &first = tensors[0];
    auto shares = [&](const at::Tensor &t) { return t.is_alias_of(first); };
    int64_t end = first.storage_offset();
    for (const at::Tensor &t : tensors) {
        if (!plain(t) || !shares(t) || t.dtype() != first.dtype() || t.storage_offset() != end)
            return {};
        end += t.numel();
    }
    if (std::any_of(others.begin(), others.end(), shares)) return {};
    return first.as_strided({end - first.storage_offset()}, {1});
}

// A tensor's elements as the core sees them: a complex element is two numbers; elements of a dtype
// that the core lacks are bytes.
struct Elements {
    explicit Elements(const at::Tensor &t) : type(type_of(t.scalar_type())), number(t.numel()) {
        if (t.scalar_type() == at::kComplexFloat)
            *this = {HVD_FLOAT32, 2 * t.numel()};
        else if (t.scalar_type() == at::kComplexDouble)
            *this = {HVD_FLOAT64, 2 * t.numel()};
        else if (type == NO_TYPE)
            *this = {HVD_UINT8, t.numel() * t.element_size()};
    }
    Elements(int type, int64_t number) : type(type), number(number) {}
    int type;
    int64_t number;
};

inline int64_t elements_each(const at::Tensor &t) {
    return Elements(at::empty({1}, t.scalar_type())).number;
}

// These functions use members that not every version of PyTorch has.
template <class O> auto is_async(const O &o, int) -> decltype(o.asyncOp) { return o.asyncOp; }
template <class O> bool is_async(const O &, long) { return true; }
template <class B>
auto set_timeout(B &backend, Milliseconds t, int) -> decltype(backend.setTimeout(t)) {
    backend.setTimeout(t);
}
template <class B> void set_timeout(B &, Milliseconds, long) {}

// Starts the collectives of one operation.
class Start {
  public:
    Start(int group, const c10::intrusive_ptr<Operation> &operation)
        : group_(group), operation_(operation) {}

    // Makes the core compare the call's name among the ranks, and `detail` if it is not empty. The
    // core itself sees only its own kind, dtype and op: a gather is an alltoall, for instance.
    void compare(const std::string &detail) {
        if (call_.empty()) call_ = operation_->what();
        if (!detail.empty()) call_ += ", " + detail;
    }
    void compare_root(int64_t root) { compare("root " + std::to_string(root)); }

    // Makes the core compare the number of tensors, if there are several.
    void expect_tensors(const Tensors &tensors) { operation_->expect_tensors(tensors.size()); }

    hvd_tensor tensor(int kind, const at::Tensor &in, const at::Tensor &out) {
        operation_->hold(in);
        operation_->hold(out);
        hvd_tensor t = {};
        t.kind = kind;
        t.group = group_;
        t.dtype = Elements(in).type;
        t.prescale = t.postscale = 1;
        t.in = in.data_ptr();
        t.out = out.data_ptr();
        return t;
    }

    void start(hvd_tensor t, const at::Tensor &in, std::initializer_list<int64_t> dims) {
        t.dims = dims.begin();
        t.ndim = static_cast<int>(dims.size());
        Start own = *this; // other tensors of the call may have other dtypes
        if (t.dtype != type_of(in.scalar_type())) own.compare(c10::toString(in.scalar_type()));
        t.call = own.call_.empty() ? nullptr : own.call_.c_str();
        operation_->start(t);
    }

    void allreduce(const at::Tensor &in, const at::Tensor &out, int op) {
        hvd_tensor t = tensor(HVD_ALLREDUCE, in, out);
        t.op = op;
        // reduce bools as uint8, because the core has minimum and maximum for uint8
        if (t.dtype == HVD_BOOL) t.dtype = HVD_UINT8;
        start(t, in, {Elements(in).number});
    }

    void broadcast(const at::Tensor &inout, int root) {
        hvd_tensor t = tensor(HVD_BROADCAST, inout, inout);
        t.root = root;
        start(t, inout, {Elements(inout).number});
    }

    // out: a row for each rank. Each row is as large as `in`.
    void allgather(const at::Tensor &in, const at::Tensor &out, int ranks) {
        hvd_tensor t = tensor(HVD_ALLGATHER, in, out);
        t.out_rows = ranks;
        start(t, in, {1, Elements(in).number});
    }

    void reducescatter(const at::Tensor &in, const at::Tensor &out, int op, int ranks) {
        hvd_tensor t = tensor(HVD_REDUCESCATTER, in, out);
        t.op = op;
        if (t.dtype == HVD_BOOL) t.dtype = HVD_UINT8;
        t.out_rows = 1;
        start(t, in, {ranks, Elements(out).number});
    }

    void send(const at::Tensor &in, int to) {
        hvd_tensor t = tensor(HVD_SEND, in, in);
        t.root = to;
        start(t, in, {Elements(in).number});
    }

    void receive(const at::Tensor &out, int from) { // from -1: from any rank
        hvd_tensor t = tensor(HVD_RECV, out, out);
        t.root = from;
        start(t, out, {Elements(out).number});
    }

    // splits: number of rows for each rank; empty: equal numbers. width: elements in a row.
    // expected: number of elements from each rank; empty: only the sum of the numbers is checked.
    void alltoall(const at::Tensor &in, const at::Tensor &out, int64_t rows, int64_t out_rows,
                  int64_t width, const std::vector<int64_t> &splits,
                  std::vector<int64_t> expected = {}) {
        hvd_tensor t = tensor(HVD_ALLTOALL, in, out);
        t.out_rows = out_rows;
        t.open = !expected.empty(); // the operation, not the core, checks `expected`
        operation_->expect(std::move(expected));
        t.splits = splits.empty() ? nullptr : splits.data();
        t.nsplits = splits.size();
        start(t, in, {rows, width});
    }

    // When the core is done: copies each copy into its tensor. A tensor may be its own copy.
    void copy_back(const Tensors &tensors, const Tensors &copies) {
        auto same = [](const at::Tensor &a, const at::Tensor &b) { return a.is_same(b); };
        if (std::equal(tensors.begin(), tensors.end(), copies.begin(), same)) return;
        operation_->deliver_by([tensors, copies] {
            for (size_t i = 0; i < tensors.size(); i++)
                if (!tensors[i].is_same(copies[i])) tensors[i].copy_(copies[i]);
        });
    }

    // When the core is done: reduces each tensor's matrix (a row for each rank) into the tensor.
    void fold_rows(const Tensors &tensors, const Tensors &matrices, const ReduceOp &reduction) {
        compare(name_of(reduction));
        operation_->deliver_by([tensors, matrices, reduction] {
            for (size_t i = 0; i < tensors.size(); i++)
                tensors[i].copy_(fold(matrices[i], reduction).view(tensors[i].sizes()));
        });
    }

    // Returns memory for all elements of the tensors. When the core is done, copies the elements
    // from this memory into the tensors, unless the memory is the tensors' own.
    at::Tensor flat_for(const Tensors &tensors, const Tensors &inputs) {
        at::Tensor flat = adjacent(tensors, inputs);
        if (flat.defined()) return flat;
        flat = room_for({total(tensors)}, host_options(inputs[0]));
        if (flat.numel() > 0) deal(flat, tensors);
        return flat;
    }

  private:
    // When the core is done: copies flat elements into the tensors, one tensor after another.
    void deal(const at::Tensor &flat, const Tensors &tensors) {
        operation_->deliver_by([flat, tensors] {
            int64_t first = 0;
            for (const at::Tensor &t : tensors) {
                t.copy_(flat.narrow(0, first, t.numel()).view(t.sizes()));
                first += t.numel();
            }
        });
    }

    const int group_;
    const c10::intrusive_ptr<Operation> &operation_;
    std::string call_; // what the ranks must have in common; empty: only what the core sees
};

// Returns the tensors' elements as one flat tensor: a view if the tensors are adjacent and share no
// memory with `outputs`, otherwise a copy.
inline at::Tensor flat_of(const Tensors &tensors, const Tensors &outputs) {
    at::Tensor view = adjacent(tensors, outputs);
    if (view.defined()) return view;
    at::Tensor flat = room_for({total(tensors)}, host_options(outputs[0]));
    int64_t first = 0;
    for (const at::Tensor &t : tensors) {
        flat.narrow(0, first, t.numel()).copy_(t.reshape({-1}));
        first += t.numel();
    }
    return flat;
}

} // namespace hvdlite
