// Staging: copies a GPU's tensors through memory of the host, because the C core handles only host
// memory.
//
// A call copies to the host on its caller's stream before the call returns. The copy back to the
// GPU uses the same stream, and ends before any thread sees that the operation has ended.
#pragma once

#include "calls.h"

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <vector>

#include <sys/mman.h>

namespace hvdlite {

inline bool is_staged(const at::Tensor &t) { return !t.is_cpu() || process.stage_all; }

// Options for a tensor's copy on the host. The copy of a GPU's tensor is pinned, because CUDA
// copies pageable memory twice.
inline at::TensorOptions host_options(const at::Tensor &t) {
    return at::TensorOptions(t.scalar_type()).pinned_memory(!t.is_cpu());
}

// Returns new memory, in huge pages if the system allows them. With small pages, page faults take
// 30 of the 43 ms that a copy of 48 MiB takes.
inline at::Tensor room_for(at::IntArrayRef sizes, const at::TensorOptions &options) {
    constexpr uintptr_t LARGE = 4 << 20, PAGE = 4096;
    at::Tensor t = at::empty(sizes, options);
    auto begin = reinterpret_cast<uintptr_t>(t.data_ptr()), from = (begin + PAGE - 1) & ~(PAGE - 1);
    if (t.nbytes() >= LARGE && !options.pinned_memory())
        madvise(reinterpret_cast<void *>(from), (begin + t.nbytes() - from) & ~(PAGE - 1),
                MADV_HUGEPAGE);
    return t;
}

inline at::Tensor to_host(const at::Tensor &t) {
    return is_staged(t) ? at::empty(t.sizes(), host_options(t)).copy_(t) : t;
}

inline std::optional<c10::Stream> stream_of(const std::vector<at::Tensor> &tensors) {
    if (tensors.empty() || tensors[0].is_cpu()) return std::nullopt;
    at::Device device = tensors[0].device();
    return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

// Returns the devices that a future of these tensors must know.
inline std::vector<at::Device> devices_of(const std::vector<at::Tensor> &tensors) {
    std::vector<at::Device> devices;
    for (const at::Tensor &t : tensors)
        if (!t.is_cpu()) devices.push_back(t.device());
    return devices;
}

} // namespace hvdlite
