// Plans: tensors of the core that calls of a group have used and that the next ones may use again.
//
// The calls of a group have one of NAMES names in turn. The core negotiates by a bit what it knows by
// its name; and what is described and checked needs only be run.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <array>
#include <atomic>
#include <mutex>

extern "C" {
#include "hvd.h"
}

namespace hvdlite {

// The core's functions, in the extension that Python has loaded.
struct Core {
    decltype(&hvd_start) start;
    decltype(&hvd_finish) finish;
    decltype(&hvd_watch) watch;
    decltype(&hvd_drop) drop;
    decltype(&hvd_plan) plan;
    decltype(&hvd_run) run;
    decltype(&hvd_source) source;
};
constexpr int CORE_FUNCTIONS = 7;
inline Core core;

class Plans : public c10::intrusive_ptr_target {
  public:
    static constexpr int NAMES = 60; // a step of training may have any divisor of it as calls

    // All in which tensors of one name differ, but for their memory.
    using Like = std::array<int64_t, 7>;
    static Like like(const hvd_tensor &t) {
        return {t.kind, t.dtype, t.op, t.root, t.dims[0], t.ndim > 1 ? t.dims[1] : -1, t.out_rows};
    }

    ~Plans() override {
        for (Place &place : places_)
            if (place.handle) core.drop(place.handle);
    }

    // A call begins by this name; true: no other one is under way.
    bool begin(int name) { return under_way_[name]++ == 0; }
    void end(int name) { under_way_[name]--; }

    // The caller's, to be run; NULL: there is none like this.
    hvd_handle *take(int name, const Like &like) {
        std::lock_guard<std::mutex> lock(mutex_);
        Place &place = places_[name];
        return place.like == like ? std::exchange(place.handle, nullptr) : nullptr;
    }

    // Its last run went well, and nobody else has it.
    void keep(int name, const Like &like, hvd_handle *handle) {
        std::lock_guard<std::mutex> lock(mutex_);
        std::swap(places_[name].handle, handle);
        places_[name].like = like;
        if (handle) core.drop(handle);
    }

  private:
    struct Place {
        hvd_handle *handle;
        Like like;
    };
    std::array<std::atomic<int>, NAMES> under_way_ = {};
    std::mutex mutex_; // guards:
    std::array<Place, NAMES> places_ = {};
};

} // namespace hvdlite
