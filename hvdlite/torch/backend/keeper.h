// Keeper: the threads that end operations for which nobody waits, and complete futures.
//
// The engine's thread hands over an operation whose tensors are done. A callback of a future may
// take Python's lock, and may itself wait for another future: so before a thread turns to an
// operation it makes sure that another one is free. The threads end before the interpreter does: a
// thread that asks for Python's lock later would be killed in the middle of C++.
#pragma once

#include "operation.h"

#include <deque>
#include <thread>

namespace hvdlite {

class Keeper {
  public:
    // Any thread. From now on the future fails at the operation's deadline.
    void limit(c10::intrusive_ptr<Operation> operation) {
        std::lock_guard<std::mutex> lock(mutex_);
        bool first = operation->deadline() < next_;
        limited_.push_back(std::move(operation));
        if (first) wake();
    }

    // The engine's thread, mostly: takes over the reference.
    void take(Operation *operation) {
        std::lock_guard<std::mutex> lock(mutex_);
        done_.push_back(operation);
        wake();
    }

    // What is not ended by now is kept for ever. Without Python's lock, which a thread may wait
    // for.
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
            news_.notify_one(); // this thread may be the only one that waits for a deadline
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

    // One that is late; nothing: there is none, and `next_` is when there will be.
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
    std::mutex mutex_; // guards all; nobody takes Python's lock under it
    std::condition_variable news_, gone_;
    std::deque<Operation *> done_;
    std::vector<c10::intrusive_ptr<Operation>> limited_;
    Clock::time_point next_ = Clock::time_point::max(); // the first deadline, or earlier
    int threads_ = 0, free_ = 0;                        // free: not busy with an operation
    bool stopped_ = false;
};

inline Keeper &keeper = *new Keeper; // for ever: its threads are not joined

// The engine's thread: hands over the operation's own reference.
inline void Operation::on_end(void *operation) {
    auto o = static_cast<Operation *>(operation);
    if (--o->unended_ == 0) keeper.take(o);
}

inline void Operation::watch() {
    if (getpid() != process) return;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (watched_) return;
        watched_ = true;
    }
    unended_ = handles_.size() + 1; // one for this function: some calls have no tensors
    c10::intrusive_ptr<Operation>::reclaim_copy(this).release();
    for (hvd_handle *h : handles_) core.watch(h, on_end, this);
    on_end(this);
}

inline void Operation::abort() {
    if (!begin_end()) return;
    end_with(failure("hvdlite: " + name_ + " (" + what_ + ") was aborted on this rank"));
    watch();
    for (hvd_handle *h : handles_) core.give_up(h);
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
        keeper.limit(c10::intrusive_ptr<Operation>::reclaim_copy(this));
        watch();
    }
    return future;
}

} // namespace hvdlite
