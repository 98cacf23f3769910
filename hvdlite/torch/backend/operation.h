// Operation: the core's collectives for one call, from the start until the call's tensors have the
// result.
//
// The engine's thread touches no PyTorch tensor and no Python object. It only tells the keeper
// (keeper.h) when the core is done. The first thread that finds the core done, a waiting thread or
// a thread of the keeper, ends the operation: this thread copies results to the caller's tensors
// and releases the memory. It holds no lock meanwhile, because releasing the last reference to a
// tensor may need Python's lock.
#pragma once

#include "staging.h"

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <string>
#include <vector>

#include <unistd.h>

namespace hvdlite {

using Tensors = std::vector<at::Tensor>;
using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using Future = c10::ivalue::Future;

// Returns the deadline. A limit above a year counts as a year, and so does a negative limit,
// because PyTorch's conversion of a long timedelta overflows to a negative number.
inline Clock::time_point after(Milliseconds limit) {
    static constexpr Milliseconds LONGEST{1000LL * 86400 * 365};
    return Clock::now() + (limit < Milliseconds(0) ? LONGEST : std::min(limit, LONGEST));
}

class Operation : public Call {
  public:
    // group, number: form the name in the core. what: the call's name. waited: the caller waits
    // immediately; the core learns this only if no other call with the name is running.
    Operation(const c10::intrusive_ptr<Calls> &calls, const std::string &group, int number,
              const char *what, Tensors outputs, Milliseconds limit, bool waited)
        : calls_(calls), number_(number), name_(group + "." + std::to_string(number)), what_(what),
          outputs_(std::move(outputs)), limit_(limit), deadline_(after(limit)),
          waited_(calls->begin(number) && waited) {}

    // A send or a receive; `name` is its whole name in the core.
    Operation(const c10::intrusive_ptr<Calls> &calls, const std::string &name, const char *what,
              Tensors outputs, Milliseconds limit)
        : calls_(calls), number_(OF_TWO), name_(name), what_(what), outputs_(std::move(outputs)),
          limit_(limit), deadline_(after(limit)), waited_(false) {}

    ~Operation() override {
        if (number_ != OF_TWO) calls_->end(number_);
        if (planned_ && ended() && !error_ && !watched_) {
            calls_->keep(number_, handles_.front());
            handles_.erase(handles_.begin());
        }
        for (hvd_handle *h : handles_) process.core.hvd_drop(h);
    }

    // ---- called before other threads know the operation ----
    void hold(const at::Tensor &tensor) { held_.push_back(tensor); }
    void deliver_by(std::function<void()> deliver) { deliver_ = std::move(deliver); }
    void expect(std::vector<int64_t> rows) { expected_ = std::move(rows); }
    void expect_tensors(size_t number) { grouped_ = number > 1 ? static_cast<int>(number) : 0; }
    void deliver_nothing() { deliver_ = nullptr; } // if the start has failed
    void start(hvd_tensor &tensor) {
        hvd_error err;
        std::string name =
            number_ == OF_TWO ? name_ : name_ + "[" + std::to_string(handles_.size()) + "]";
        tensor.name = name.c_str();
        tensor.grouped = grouped_;
        tensor.waited = waited_;
        tensor.queued = 1;
        bool plans = waited_ && !grouped_ && !tensor.splits;
        hvd_handle *h = plans ? plan(tensor, &err) : process.core.hvd_start(&tensor, &err);
        if (!h) std::rethrow_exception(failure(err));
        handles_.push_back(h);
        planned_ |= plans;
        if (plans) process.core.hvd_run(h, tensor.in, tensor.out, 0);
    }

    // ---- any thread ----
    // Ends the operation with an error. The core may still use the operation's memory, so the
    // keeper keeps this memory alive.
    void abort() override;
    Milliseconds limit() const { return limit_; }
    Clock::time_point deadline() const { return deadline_; }
    const Tensors &outputs() const { return outputs_; }
    const char *what() const { return what_; }
    bool ended() const { return state_.load(std::memory_order_acquire) == ENDED; }
    std::exception_ptr error() const { return ended() ? error_ : nullptr; }

    // Returns the rank that has sent the tensor of this receive.
    int source() const { return process.core.hvd_source(handles_.front()); }

    // Ends the operation if the core is done. Returns false if the core is not done, or if another
    // thread is ending the operation. If `waited_`, the engine relies on the caller to run the
    // engine's steps, so poll() runs the engine for a moment.
    bool poll() {
        if (done(waited_ ? A_MOMENT : 0)) end();
        return ended();
    }

    // Waits for at most `seconds`; returns true if the core is done.
    bool done(double seconds) { return ended() || all_done(Clock::now(), seconds); }

    // Waits until the operation has ended. Returns false if the core is not done at time `until`.
    bool wait_until(Clock::time_point until) {
        while (!ended() && !all_done(until, A_DAY))
            if (Clock::now() >= until) return false;
        wait_for_end();
        return true;
    }

    // Ends the operation, or waits until another thread has ended it. The core must be done.
    void wait_for_end() {
        end();
        std::unique_lock<std::mutex> lock(mutex_);
        ended_.wait(lock, [this] { return ended(); });
    }

    // Ends the operation, unless another thread is ending it. The core must be done.
    void end();
    void watch(); // passes the operation to the keeper, which keeps it alive and ends it
    c10::intrusive_ptr<Future> future();
    // completes the future, if there is one; only the first call counts
    void tell(std::exception_ptr error);

    // Completes the future: with the result if the core is done, otherwise with a timeout. Asks the
    // core and not `state_`, which changes late while another thread ends the operation.
    void conclude() {
        if (!done(0)) return tell(failure(timed_out(limit_)));
        wait_for_end();
        tell(error_);
    }

    std::string timed_out(Milliseconds limit) const {
        return "hvdlite: Timed out waiting " + std::to_string(limit.count()) + " ms for " + name_ +
               " (" + what_ + "): some rank has not called it, or does not answer";
    }

  private:
    static void on_end(void *operation);
    bool begin_end(); // returns true if this thread must end the operation by end_with()
    void end_with(std::exception_ptr error);
    static constexpr int OF_TWO = -1;
    enum State { RUNNING, ENDING, ENDED };
    static constexpr double A_MOMENT = 1e-6, A_DAY = 86400; // seconds

    hvd_handle *plan(const hvd_tensor &tensor, hvd_error *err) {
        hvd_handle *h = calls_->take(number_, tensor);
        return h ? h : process.core.hvd_plan(&tensor, err);
    }

    static double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

    bool all_done(Clock::time_point until, double most) {
        for (hvd_handle *h : handles_) {
            if (process.core.hvd_finish(h, 0, nullptr)) continue;
            double left =
                most > A_MOMENT ? std::clamp(seconds(until - Clock::now()), 0.0, most) : most;
            if (!process.core.hvd_finish(h, left, nullptr)) return false;
        }
        return true;
    }

    std::exception_ptr deliver() {
        for (hvd_handle *h : handles_) {
            hvd_error err;
            process.core.hvd_finish(h, 0, &err);
            if (err.code) return failure(err);
        }
        std::string other = unexpected();
        if (!other.empty()) return failure(other);
        try {
            c10::InferenceMode mode; // needed to write to tensors that were made in this mode
            c10::OptionalStreamGuard guard(stream_);
            if (deliver_) deliver_();
        } catch (...) {
            return std::current_exception();
        }
        return nullptr;
    }

    // Returns an error text if a rank has sent another number of elements than expected, else "".
    std::string unexpected() const {
        const int64_t *sent = nullptr;
        if (!expected_.empty()) process.core.hvd_result(handles_.front(), &sent);
        // without numbers all ranks have sent equally many elements, by the fast path
        for (size_t r = 0; sent && r < expected_.size(); r++)
            if (sent[r] != expected_[r])
                return "hvdlite: " + name_ + " (" + what_ + "): rank " + std::to_string(r) +
                       " of the group sends " + std::to_string(sent[r]) +
                       " elements to this rank, which expects " + std::to_string(expected_[r]) +
                       ": pass the same size on both ranks";
        return {};
    }

    const c10::intrusive_ptr<Calls> calls_;
    const int number_; // number of the group's call; OF_TWO: a send or a receive
    const std::string name_;
    const char *const what_;
    const Tensors outputs_;
    const std::optional<c10::Stream> stream_ = stream_of(outputs_); // the caller's stream
    const Milliseconds limit_;
    const Clock::time_point deadline_;
    const bool waited_; // true: the caller waits immediately, and runs the engine's steps meanwhile
    c10::SmallVector<hvd_handle *, 1> handles_;
    int grouped_ = 0;                      // number of the core's tensors; 0: one tensor
    bool planned_ = false;                 // true: later calls can reuse the first handle
    c10::SmallVector<at::Tensor, 2> held_; // the memory that the core's tensors use
    std::vector<int64_t> expected_;        // elements from each rank; empty: the core checks them
    std::function<void()> deliver_;        // copies results from `held_` into the caller's tensors
    std::atomic<int> state_{RUNNING};
    std::exception_ptr error_; // set before ENDED
    std::atomic<bool> told_{false};
    // number of the core's tensors that have not ended, for on_end()
    std::atomic<size_t> unended_{0};
    // guards the fields below
    std::mutex mutex_;
    std::condition_variable ended_;
    c10::intrusive_ptr<Future> future_;
    bool watched_ = false;
};

inline bool Operation::begin_end() {
    int running = RUNNING;
    return state_.compare_exchange_strong(running, ENDING);
}

inline void Operation::end_with(std::exception_ptr error) {
    error_ = std::move(error);
    {
        std::lock_guard<std::mutex> lock(mutex_);
        state_.store(ENDED, std::memory_order_release);
    }
    ended_.notify_all();
    calls_->leave(*this);
}

inline void Operation::end() {
    if (!begin_end()) return;
    auto error = deliver();
    auto held = std::move(held_);
    std::function<void()> delivered = std::move(deliver_);
    end_with(error);
}

inline void Operation::tell(std::exception_ptr error) {
    c10::intrusive_ptr<Future> future;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        future = future_;
    }
    if (!future || told_.exchange(true)) return;
    if (error)
        future->setError(error);
    else
        future->markCompleted(c10::IValue(outputs_));
}

} // namespace hvdlite
