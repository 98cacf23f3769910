// Calls: the state that the calls of a group share, and the state of the process.
//
// The state of the calls has handles of the core that later calls can reuse, and a list of the
// calls in progress, so that these can be aborted.
//
// The calls of a group use NAMES names in turn. For a name that recurs, the core sends only a cache
// id, and need not describe and check the tensor again.
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <array>
#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

extern "C" {
#include "functions.h"
}

namespace hvdlite {

class Keeper;

// The state that the backend keeps between calls. Made when Python loads the backend.
struct Process {
    pid_t pid = getpid();               // to recognize a forked child, which has no threads
    struct core core = {};              // functions of the core that Python has loaded
    PyObject *bucket = nullptr;         // bucket() of groups.py; never released
    std::atomic<int> jobs{1};           // number of the job; reconfigure begins another job
    std::atomic<bool> stage_all{false}; // for tests without a GPU: stage CPU tensors, too
    Keeper *keeper = nullptr;           // never freed: its threads are not joined
};
inline Process process;

inline std::exception_ptr failure(const std::string &text) {
    return std::make_exception_ptr(
        c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

// A call that is in progress.
class Call : public c10::intrusive_ptr_target {
  public:
    virtual void abort() = 0;

  private:
    friend class Calls;
    c10::intrusive_ptr<Call> own_; // a reference to itself while it is in its group's list
    Call *next_ = nullptr, **link_ = nullptr;
};

class Calls : public c10::intrusive_ptr_target {
  public:
    // has many divisors: if a step's number of calls is a divisor, each step has the same names
    static constexpr int NAMES = 60;

    // All properties, apart from memory, in which two tensors with the same name may differ.
    using Like = std::array<int64_t, 7>;
    static Like like(const hvd_tensor &t) {
        return {t.kind, t.dtype, t.op, t.root, t.dims[0], t.ndim > 1 ? t.dims[1] : -1, t.out_rows};
    }

    ~Calls() override {
        for (Slot &slot : slots_)
            if (slot.handle) process.core.hvd_drop(slot.handle);
    }

    // ---- calls in progress ----
    bool aborted() const { return aborted_.load(std::memory_order_relaxed); }

    // Returns false if the group was aborted before: the caller must abort the call.
    bool enter(Call &call) {
        std::lock_guard<std::mutex> lock(mutex_);
        call.own_ = c10::intrusive_ptr<Call>::reclaim_copy(&call);
        call.next_ = first_;
        call.link_ = &first_;
        if (first_) first_->link_ = &call.next_;
        first_ = &call;
        return !aborted_;
    }
    void leave(Call &call) {
        c10::intrusive_ptr<Call> own; // released without the lock
        std::lock_guard<std::mutex> lock(mutex_);
        own = std::move(call.own_);
        if (!own) return;
        *call.link_ = call.next_;
        if (call.next_) call.next_->link_ = call.link_;
    }
    void abort() {
        std::vector<c10::intrusive_ptr<Call>> all;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            aborted_ = true;
            for (Call *call = first_; call; call = call->next_) all.push_back(call->own_);
        }
        for (auto &call : all) call->abort();
    }

    // ---- tensors of the core ----
    // Records that a call with this name begins. Returns true if no other call of this name runs.
    bool begin(int name) { return under_way_[name]++ == 0; }
    void end(int name) { under_way_[name]--; }

    // Returns a handle that can run such a tensor again, or NULL. The caller owns the handle.
    hvd_handle *take(int name, const Like &like) {
        std::lock_guard<std::mutex> lock(mutex_);
        Slot &slot = slots_[name];
        return slot.like == like ? std::exchange(slot.handle, nullptr) : nullptr;
    }

    // Stores a handle for reuse. Its last run must have succeeded; no other thread may have it.
    void keep(int name, const Like &like, hvd_handle *handle) {
        std::lock_guard<std::mutex> lock(mutex_);
        std::swap(slots_[name].handle, handle);
        slots_[name].like = like;
        if (handle) process.core.hvd_drop(handle);
    }

  private:
    struct Slot {
        hvd_handle *handle;
        Like like;
    };
    std::array<std::atomic<int>, NAMES> under_way_ = {};
    std::atomic<bool> aborted_{false}; // set under the lock
    std::mutex mutex_;                 // guards:
    std::array<Slot, NAMES> slots_ = {};
    Call *first_ = nullptr;
};

} // namespace hvdlite
