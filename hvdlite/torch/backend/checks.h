// Checks: the tensors of one call must agree in some properties. And buffers like these tensors,
// for the core.
//
// PyTorch's own checks (c10d/Utils.hpp) make most refusals. Where these checks are too strict, the
// refusal has their words.
#pragma once

#include "start.h"

#include <torch/csrc/distributed/c10d/Utils.hpp>

namespace hvdlite {

// What PyTorch's checks call with the reason.
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
    TORCH_CHECK(large.numel() == small.numel() * ranks, "hvdlite: expected ", ranks,
                " times as many elements: got ", large.sizes(), " and ", small.sizes());
}

inline void check_parts(const at::Tensor &t, const std::vector<int64_t> &splits, int ranks) {
    TORCH_CHECK(t.dim() > 0, "hvdlite: all_to_all_single takes no tensors without dimensions");
    c10d::checkSplitSizes(splits, t, ranks);
}

// For each tensor a matrix with a row for every rank.
inline Tensors matrices_of(const Tensors &tensors, int ranks) {
    Tensors matrices;
    for (const at::Tensor &t : tensors)
        matrices.push_back(room_for({ranks, t.numel()}, host_options(t)));
    return matrices;
}

inline Tensors dense_of(const Tensors &tensors) {
    Tensors copies;
    for (const at::Tensor &t : tensors) copies.push_back(dense(t));
    return copies;
}

// The tensors to write to: the given ones, or new ones in place of tensors that are not contiguous
// or on a GPU.
inline Tensors buffers_of(const Tensors &tensors) {
    Tensors buffers;
    for (const at::Tensor &t : tensors)
        buffers.push_back(
            t.is_contiguous() && !is_staged(t) ? t : room_for(t.sizes(), host_options(t)));
    return buffers;
}

} // namespace hvdlite
