// Checks: refuses wrong tensors of a call, and replaces tensors that the C core can't use by dense
// buffers.
//
// PyTorch's own checks (c10d/Utils.hpp) raise most errors. Where PyTorch's checks are too strict,
// the checks here raise errors with the same words.
#pragma once

#include "start.h"

#include <torch/csrc/distributed/c10d/Utils.hpp>

#include <numeric>

namespace hvdlite {

// Raises an error about one call. PyTorch's checks call this object with the reason.
struct Refusal {
    const char *call;
    int rank, size;
    void operator()(const std::string &why) const {
        TORCH_CHECK(false, "hvdlite: ", call, " on rank ", rank, " of ", size, ": ", why);
    }
};

inline void check_type(const at::Tensor &a, const at::Tensor &b) {
    TORCH_CHECK(a.scalar_type() == b.scalar_type(), "hvdlite: invalid tensor type: tensors of one ",
                "call must have one type: got ", a.scalar_type(), " and ", b.scalar_type());
}

inline void check_alike(const at::Tensor &a, const at::Tensor &b) {
    check_type(a, b);
    TORCH_CHECK(a.numel() == b.numel(),
                "hvdlite: invalid tensor size: tensors of one call must be ", "equally large: got ",
                a.sizes(), " and ", b.sizes());
}

inline void check_alike(const Tensors &many, const at::Tensor &one) {
    for (const at::Tensor &t : many) check_alike(t, one);
}

inline void check_times(const at::Tensor &large, const at::Tensor &small, int ranks) {
    check_type(large, small);
    TORCH_CHECK(large.numel() == small.numel() * ranks, "hvdlite: expected the tensor with all ",
                "ranks' parts to have ", ranks, " times as many elements as the tensor with one ",
                "part: got sizes ", large.sizes(), " and ", small.sizes());
}

inline void check_parts(const at::Tensor &t, const std::vector<int64_t> &splits, int ranks) {
    TORCH_CHECK(t.dim() > 0, "hvdlite: all_to_all_single: expected tensors with at least one ",
                "dimension, got a tensor without dimensions: reshape it to (1,)");
    c10d::checkSplitSizes(splits, t, ranks);
}

// Returns, for each tensor, a new matrix with a row for every rank.
inline Tensors matrices_of(const Tensors &tensors, int ranks) {
    Tensors matrices;
    for (const at::Tensor &t : tensors)
        matrices.push_back(room_for({ranks, t.numel()}, host_options(t)));
    return matrices;
}

inline const char *begin_of(const at::Tensor &t) { return static_cast<char *>(t.data_ptr()); }

inline Tensors dense_of(const Tensors &tensors) {
    Tensors copies;
    for (const at::Tensor &t : tensors) copies.push_back(dense(t));
    return copies;
}

// Like dense_of, but also clones tensors that overlap, because the core moves all tensors
// concurrently.
inline Tensors apart_of(const Tensors &tensors) {
    Tensors copies = dense_of(tensors);
    if (copies.size() < 2) return copies;
    std::vector<size_t> order(copies.size());
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return begin_of(copies[a]) < begin_of(copies[b]); });
    size_t last = 0; // number of the tensor that ends at `end`, the highest end so far
    const char *end = nullptr;
    for (size_t i : order) {
        if (copies[i].nbytes() == 0) continue;
        const char *begin = begin_of(copies[i]), *own_end = begin + copies[i].nbytes();
        if (begin < end)
            for (size_t both : {last, i}) copies[both] = copies[both].clone();
        if (own_end > end) end = own_end, last = i;
    }
    return copies;
}

inline std::vector<int64_t> numbers_of(const Tensors &tensors) {
    std::vector<int64_t> numbers;
    for (const at::Tensor &t : tensors) numbers.push_back(t.numel());
    return numbers;
}

// Returns the tensors for the core to write to: the given tensors, or new buffers for tensors that
// are on a GPU or not contiguous.
inline Tensors buffers_of(const Tensors &tensors) {
    Tensors buffers;
    for (const at::Tensor &t : tensors)
        buffers.push_back(
            t.is_contiguous() && !is_staged(t) ? t : room_for(t.sizes(), host_options(t)));
    return buffers;
}

} // namespace hvdlite
