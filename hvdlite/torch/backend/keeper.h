// Keeper: the threads that complete PyTorch's futures.
//
// The engine's thread passes operations to the keeper when the core is done with their tensors. A
// future's callback may take Python's lock, or wait for another future. So a keeper's thread that
// takes an operation starts another thread if no other thread is free. The threads end before the
// interpreter ends, because an interpreter that ends kills each thread that asks for Python's lock,
// in the middle of C++ code.
#pragma once

#include "operation.h"

#include <deque>
#include <thread>

namespace hvdlite {

class Keeper {
  public:
    // Makes the operation's future fail at the operation's deadline. Any thread may call it.
    void limit(c10::intrusive_ptr<Operation> operation) {
        std::lock_guard<std::mutex> lock(mutex_);
        bool first = operation->deadline() < next_;
        limited_.push_back(std::move(operation));
        if (first) wake();
    }

    // Takes over a reference to an operation when the core is done with the operation's tensors.
    void take(Operation *operation) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.push_back(operation);
        wake();
    }

    // Ends the threads. Operations in progress are never freed. The caller must not hold Python's
    // lock, because a thread of the keeper may wait for this lock.
    void stop() {
        static const Milliseconds PATIENCE(2000);
        std::unique_lock<std::mutex> lock(mutex_);
        stopped_ = true;
        news_.notify_all();
        gone_.wait_for(lock, PATIENCE, [this] { return threads_ == 0; });
    }

  private:
    void wake() {
        if (!stopped_ && free_ == 0) add_thread();
        news_.notify_one();
    }

    void add_thread() {
        threads_++;
        free_++;
        std::thread(&Keeper::run, this).detach();
    }

    void run() {
        std::unique_lock<std::mutex> lock(mutex_);
        while (!stopped_ && free_ <= MOST_FREE) {
            auto operation = done_.empty() ? take_late() : take_done();
            if (operation)
                serve(lock, std::move(operation));
            else if (next_ == Clock::time_point::max())
                news_.wait(lock);
            else
                news_.wait_until(lock, next_);
        }
        free_--;
        if (--threads_ == 0) gone_.notify_all();
    }

    void serve(std::unique_lock<std::mutex> &lock, c10::intrusive_ptr<Operation> operation) {
        if (--free_ == 0)
            add_thread();
        else if (!limited_.empty())
            // another thread must wait for the next deadline, if no other thread does so
            news_.notify_one();
        lock.unlock();
        operation->conclude();
        operation.reset();
        lock.lock();
        free_++;
    }

    c10::intrusive_ptr<Operation> take_done() {
        auto operation = c10::intrusive_ptr<Operation>::reclaim(done_.front());
        done_.pop_front();
        for (size_t i = 0; i < limited_.size(); i++)
            if (limited_[i] == operation) take_limited(i);
        return operation;
    }

    // Takes an operation whose deadline has passed; without one, sets `next_` to the next deadline.
    c10::intrusive_ptr<Operation> take_late() {
        next_ = Clock::time_point::max();
        for (size_t i = 0; i < limited_.size(); i++) {
            if (limited_[i]->deadline() <= Clock::now()) return take_limited(i);
            next_ = std::min(next_, limited_[i]->deadline());
        }
        return {};
    }

    c10::intrusive_ptr<Operation> take_limited(size_t i) {
        std::swap(limited_[i], limited_.back());
        auto operation = std::move(limited_.back());
        limited_.pop_back();
        return operation;
    }

    static constexpr int MOST_FREE = 2;
    std::mutex mutex_; // guards all fields; a thread that holds it must not take Python's lock
    std::condition_variable news_, gone_;
    std::deque<Operation *> done_;
    std::vector<c10::intrusive_ptr<Operation>> limited_;
    Clock::time_point next_ = Clock::time_point::max(); // at or before the first deadline
    // number of threads, and of threads without an operation
    int threads_ = 0, free_ = 0;
    bool stopped_ = false;
};

// Called by the engine's thread for each tensor that is done. After the operation's last tensor,
// gives the keeper the reference that watch() has made.
inline void Operation::on_end(void *operation) {
    auto o = static_cast<Operation *>(operation);
    if (--o->unended_ == 0) process.keeper->take(o);
}

inline void Operation::watch() {
    if (getpid() != process.pid) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (watched_) return;
        watched_ = true;
    }
    unended_ = handles_.size() + 1; // + 1 for this function, because some calls have no tensors
    c10::intrusive_ptr<Operation>::reclaim_copy(this).release();
    for (hvd_handle *h : handles_) process.core.hvd_watch(h, on_end, this);
    on_end(this);
}

inline void Operation::abort() {
    if (!begin_end()) return;
    end_with(failure("hvdlite: " + name_ + " (" + what_ + ") was aborted on this rank"));
    watch();
    for (hvd_handle *h : handles_) process.core.hvd_give_up(h);
    tell(error_);
}

inline c10::intrusive_ptr<Future> Operation::future() {
    c10::intrusive_ptr<Future> future;
    bool first;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        first = !future_;
        if (first)
            future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                                  devices_of(outputs_));
        future = future_;
    }
    if (poll())
        tell(error_);
    else if (first) {
        process.keeper->limit(c10::intrusive_ptr<Operation>::reclaim_copy(this));
        watch();
    }
    return future;
}

} // namespace hvdlite
