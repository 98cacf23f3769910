// Works: the objects that torch.distributed returns to callers, with wait(), is_completed() and a
// future.
//
// The caller owns a work, and may drop it while the operation is in progress.
#pragma once

#include "keeper.h"

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace hvdlite {

using c10d::OpType;
using c10d::Work;
using WorkPtr = c10::intrusive_ptr<Work>;

class HvdWork : public Work {
  public:
    HvdWork(int rank, OpType type, const char *title, const Tensors &inputs,
            c10::intrusive_ptr<Operation> operation, uint64_t number)
        : Work(rank, type, title, inputs), operation_(std::move(operation)), number_(number) {}

    ~HvdWork() override {
        if (!operation_->poll()) operation_->watch();
        if (recordFunctionEndCallback_) recordFunctionEndCallback_();
    }

    bool isCompleted() override { return operation_->poll() && note_end(); }
    bool isSuccess() const override { return operation_->ended() && !operation_->error(); }
    std::exception_ptr exception() const override { return operation_->error(); }
    Tensors result() override { return operation_->outputs(); }
    int sourceRank() const override { return operation_->source(); }
    uint64_t getSequencenumber() const override { return number_; }
    c10::intrusive_ptr<Future> getFuture() override { return operation_->future(); }
    void abort() override { operation_->abort(); }

    bool wait(Milliseconds timeout) override {
        bool own = timeout > kNoTimeout;
        auto until = own ? after(timeout) : operation_->deadline();
        if (!operation_->wait_until(until))
            std::rethrow_exception(
                failure(operation_->timed_out(own ? timeout : operation_->limit())));
        note_end();
        if (operation_->error()) std::rethrow_exception(operation_->error());
        return true;
    }

  private:
    bool note_end() {
        if (!noted_.exchange(true)) finish(operation_->error());
        return true;
    }

    const c10::intrusive_ptr<Operation> operation_;
    const uint64_t number_;
    std::atomic<bool> noted_{false};
};

} // namespace hvdlite
