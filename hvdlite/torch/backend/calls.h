// Calls: the state that the calls of a group share, and the state of the process.
//
// A group's Calls keeps handles of the C core for reuse by later calls, and lists the calls in
// progress, so that abort() can end these calls.
//
// The calls of a group take NAMES names in turn. If a tensor's name recurs, the core sends only a
// cache id instead of the tensor's description.
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
    pid_t pid = getpid();               // of the parent in a forked child, which has no threads
    struct core core = {};              // the functions of the C core
    PyObject *bucket = nullptr;         // bucket() of groups.py; never released
    std::atomic<int> jobs{1};           // number of the current job; reconfigure() adds 1
    std::atomic<bool> stage_all{false}; // true: copy CPU tensors like a GPU's tensors, for tests
    Keeper *keeper = nullptr;           // never freed, because its threads are not joined
};
inline Process process;

inline std::exception_ptr failure(const std::string &text) {
    return std::make_exception_ptr(
        c10::DistBackendError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, text));
}

// Returns the exception for an error of the core. The exception has only the error's text: Python's
// failure_of() finds the error by the mark in this text.
inline std::exception_ptr failure(hvd_error &err) {
    process.core.hvd_keep_failure(&err);
    return failure(std::string("hvdlite: ") + err.text);
}

// A call that is in progress.
class Call : public c10::intrusive_ptr_target {
  public:
    virtual void abort() = 0;

  private:
    friend class Calls;
    c10::intrusive_ptr<Call> own_; // keeps this call alive while it is in its group's list
    Call *next_ = nullptr, **link_ = nullptr;
};

class Calls : public c10::intrusive_ptr_target {
  public:
    // 60 has many divisors: if a training step's number of calls divides 60, steps repeat the names
    static constexpr int NAMES = 60;

    ~Calls() override {
        for (hvd_handle *kept : kept_)
            if (kept) process.core.hvd_drop(kept);
    }

    // ---- calls in progress ----
    bool aborted() const { return aborted_.load(std::memory_order_relaxed); }

    // Adds a call in progress. Returns false if the group was aborted: the caller must abort the
    // call.
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
        c10::intrusive_ptr<Call> own; // declared before the lock, to be released after the lock
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

    // Returns a handle that can run this tensor, or NULL. The caller owns the handle.
    hvd_handle *take(int name, const hvd_tensor &tensor) {
        std::lock_guard<std::mutex> lock(mutex_);
        hvd_handle *&kept = kept_[name];
        bool fits = kept && process.core.hvd_plan_fits(kept, &tensor);
        return fits ? std::exchange(kept, nullptr) : nullptr;
    }

    // Stores a handle for reuse. The handle's last run must have succeeded, and no other thread may
    // use the handle.
    void keep(int name, hvd_handle *handle) {
        std::lock_guard<std::mutex> lock(mutex_);
        std::swap(kept_[name], handle);
        if (handle) process.core.hvd_drop(handle);
    }

  private:
    std::array<std::atomic<int>, NAMES> under_way_ = {};
    std::atomic<bool> aborted_{false};          // set under the lock
    std::mutex mutex_;                          // guards the fields below
    std::array<hvd_handle *, NAMES> kept_ = {}; // by name, for reuse
    Call *first_ = nullptr;
};

} // namespace hvdlite
