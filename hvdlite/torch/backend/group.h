// Group: a process group of PyTorch.
//
// Ranks call a group's collectives in the same order. So the name of a call's tensor in the core is
// the group's name and the call's number modulo Calls::NAMES, and the core checks that the ranks'
// calls match. The name of a send or receive is the group's name and the tag.
#pragma once

#include "checks.h"
#include "works.h"

#include <pybind11/chrono.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/utils/pybind.h>

namespace hvdlite {

using namespace c10d;

// A call's two names in a profile: the default name, and the name after as_gloo().
#define EVENT(NAME) "hvdlite:" NAME "\0gloo:" NAME

class Group : public Backend {
  public:
    struct Options : Backend::Options {
        explicit Options(Milliseconds timeout) : Backend::Options("hvdlite", timeout) {}
    };

    // name: prefix of the names of the group's tensors; unique, and the same on all ranks.
    // reconfigure: a Reconfigure that later gives the group its ranks; None: the ranks are fixed.
    Group(int rank, int size, int group, std::string name, Milliseconds timeout,
          c10::intrusive_ptr<Store> store, py::object reconfigure)
        : Backend(rank, size), job_(reconfigure.is_none() ? process.jobs.load() : 0), group_(group),
          name_(std::move(name)), options_(c10::make_intrusive<Options>(timeout)),
          store_(std::move(store)),
          reconfigure_(reconfigure.is_none() ? nullptr : reconfigure.release().ptr()) {}

    const std::string getBackendName() const override { return "hvdlite"; }
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override { return number_; }

    // ---- not `override`, because not every version of PyTorch has these ----

    c10::intrusive_ptr<Backend::Options> getBackendOptions() { return options_; }
    void setTimeout(Milliseconds timeout) {
        options_->timeout = timeout;
        std::lock_guard<std::mutex> lock(mutex_);
        if (gloo_) set_timeout(*gloo_, timeout, 0);
    }

    // Makes profiles name the group's events as Gloo's events, for HVDLITE_AS_GLOO=1.
    void as_gloo() { as_gloo_ = true; }

    // Makes all later calls fail, and all calls in progress except Gloo's. Any thread may call it.
    void abort() { calls_->abort(); }

    // Memory for DistributedDataParallel's buckets. All ranks call allocateTensor.
    bool supportsTensorAlloc(c10::DeviceIndex of_gpu) {
        return of_gpu < 0 && group_ == 0 && size_ > 1;
    }
    at::Tensor allocateTensor(long size, at::TensorOptions options) {
        py::gil_scoped_acquire gil;
        auto type = c10::typeMetaToScalarType(options.dtype());
        double seconds = options_->timeout.count() / 1e3;
        try {
            auto made =
                py::handle(process.bucket)(size, py::cast(type), seconds).cast<at::Tensor>();
            c10::StorageImpl *storage = made.storage().unsafeGetStorageImpl();
            storage->set_allocator(c10::GetAllocator(c10::kCPU));
            storage->set_resizable(true); // some communication hooks enlarge a bucket
            return made;
        } catch (py::error_already_set &error) {
            std::rethrow_exception(failure(std::string("hvdlite: ") + error.what()));
        }
    }

#ifdef C10D_BACKEND_HAS_RECONFIGURE
    bool supportsReconfigure() const override { return reconfigure_ != nullptr; }
    ReconfigureHandle get_reconfigure_handle() const override {
        check_reconfigures();
        py::gil_scoped_acquire gil;
        return py::handle(reconfigure_).attr("handle").cast<std::string>();
    }

    // Leaves the process's job and joins another job. The process's other groups belong to the old
    // job and fail from now on.
    WorkPtr reconfigure(const ReconfigureOptions &o) override {
        check_reconfigures();
        double seconds = o.timeout.value_or(options_->timeout).count() / 1e3;
        py::gil_scoped_acquire gil;
        try {
            py::object handles = std::visit([](auto &all) { return py::cast(all); }, o.handles);
            py::tuple now = py::handle(reconfigure_)(o.uuid, handles, seconds);
            rank_ = now[0].cast<int>();
            size_ = now[1].cast<int>();
            name_ = now[2].cast<std::string>();
            store_ = now[3].cast<c10::intrusive_ptr<Store>>();
        } catch (py::error_already_set &error) {
            std::rethrow_exception(failure(std::string("hvdlite: ") + error.what()));
        }
        gloo_.reset();
        calls_ = c10::make_intrusive<Calls>();
        number_ = barriers_ = 0;
        job_ = process.jobs;
        auto done = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
        done->markCompleted(c10::IValue(Tensors()));
        return Work::create_from_future(done);
    }
#endif

    // ---- between two ranks ----

    WorkPtr send(Tensors &tensors, int to, int tag) override {
        const at::Tensor &t = only(tensors);
        return exchange(OpType::SEND, EVENT("send"), t, name_of(tag), options_->timeout,
                        [&](Start &start) { start.send(dense(t), to); });
    }
    WorkPtr recv(Tensors &tensors, int from, int tag) override {
        return receive(OpType::RECV, EVENT("recv"), only(tensors), from, tag);
    }
    WorkPtr recvAnysource(Tensors &tensors, int tag) override {
        return receive(OpType::RECVANYSOURCE, EVENT("recvAnySource"), only(tensors), -1, tag);
    }

    // Rank 0 waits for a signal from each rank, then answers all ranks.
    void monitoredBarrier(const BarrierOptions &o, bool all) override {
        auto limit = o.timeout == kUnsetTimeout ? options_->timeout : o.timeout;
        Signals signals{*this, name_ + ".monitored" + std::to_string(++barriers_), limit};
        if (rank_ == 0)
            signals.gather(all);
        else
            signals.report();
    }

  protected:
    template <class O, class F>
    WorkPtr run(OpType type, const char *title, const Tensors &ins, const Tensors &outs, const O &o,
                F fill) {
        uint64_t number = ++number_;
        auto limit = o.timeout == kUnsetTimeout ? options_->timeout : o.timeout;
        auto operation =
            c10::make_intrusive<Operation>(calls_, name_, static_cast<int>(number % Calls::NAMES),
                                           title + sizeof "hvdlite", outs, limit, !is_async(o, 0));
        return started(type, title, ins, operation, number, fill);
    }

    // Returns Gloo's process group, which all ranks make in the first call that needs Gloo.
    Backend &gloo() {
        check_alive();
        std::lock_guard<std::mutex> lock(mutex_);
        if (gloo_) return *gloo_;
        py::gil_scoped_acquire gil;
        auto make = py::module_::import("torch._C._distributed_c10d").attr("ProcessGroupGloo");
        py::object made = make(store_, rank_, size_, py::arg("timeout") = options_->timeout);
        gloo_ = made.cast<c10::intrusive_ptr<Backend>>();
        return *gloo_;
    }

  private:
    // The messages of a monitored barrier.
    struct Signals {
        Group &group;
        std::string name;
        Milliseconds limit;
        Clock::time_point until = after(limit);
        std::vector<WorkPtr> works = {};

        // Gives up the sends and receives that no rank has matched in time.
        ~Signals() {
            for (const WorkPtr &work : works) work->abort();
        }
        Work &send(int to) {
            works.push_back(group.exchange(OpType::SEND, EVENT("send"), one(), name, limit,
                                           [&](Start &start) { start.send(one(), to); }));
            return *works.back();
        }
        Work &receive(int from) {
            at::Tensor t = one();
            works.push_back(group.exchange(OpType::RECV, EVENT("recv"), t, name, limit,
                                           [&](Start &start) { start.receive(t, from); }));
            return *works.back();
        }
        void gather(bool all) {
            std::string late, why;
            int number = 0;
            for (int r = 1; r < group.size_; r++) receive(r);
            for (int r = 1; r < group.size_; r++) {
                bool over = Clock::now() >= until;
                if (comes(*works[r - 1], why)) continue;
                TORCH_CHECK_WITH(DistBackendError, all || !over,
                                 "hvdlite: [Rank 0]: Rank 0 timed out in monitoredBarrier after ",
                                 limit.count(), " ms, before a signal came from rank ", r, why);
                late += (number++ ? ", " : "") + std::to_string(r);
                if (!all) break;
            }
            TORCH_CHECK_WITH(DistBackendError, late.empty(), "hvdlite: [Rank 0]: Rank",
                             all ? "s " : " ", late, " failed to pass monitoredBarrier in ",
                             limit.count(), " ms", why);
            for (int r = 1; r < group.size_; r++) send(r).wait(left());
        }
        void report() {
            Work &sent = send(0), &received = receive(0);
            std::string why;
            TORCH_CHECK_WITH(DistBackendError, comes(sent, why) && comes(received, why),
                             "hvdlite: [Rank ", group.rank_, "]: Rank ", group.rank_,
                             " successfully reached monitoredBarrier, but received errors while "
                             "waiting for send/recv from rank 0. Please check rank 0 logs for "
                             "faulty rank",
                             why);
        }
        Milliseconds left() const {
            auto left = std::chrono::duration_cast<Milliseconds>(until - Clock::now());
            return std::max(left, Milliseconds(1));
        }
        // Returns false if the signal is late or has failed, for instance because a rank has died.
        // Appends the reason of a failure to `why`.
        bool comes(Work &work, std::string &why) const {
            try {
                return work.wait(left());
            } catch (const c10::Error &error) {
                if (work.exception()) why += std::string("; ") + error.what_without_backtrace();
                return false;
            }
        }
        static at::Tensor one() { return at::zeros({1}, at::kByte); }
    };

    static const at::Tensor &only(const Tensors &tensors) {
        TORCH_CHECK(tensors.size() == 1, "hvdlite: send and recv take one tensor: got ",
                    tensors.size());
        TORCH_CHECK(moves(tensors[0]), "hvdlite: send and recv take dense tensors: got a tensor ",
                    "of layout ", tensors[0].layout(), " on ", tensors[0].device());
        return tensors[0];
    }

    std::string name_of(int tag) const {
        TORCH_CHECK(tag >= 0, "hvdlite: expected a tag of 0 or more, got ", tag);
        return name_ + ".tag" + std::to_string(tag);
    }

    WorkPtr receive(OpType type, const char *title, const at::Tensor &t, int from, int tag) {
        return exchange(type, title, t, name_of(tag), options_->timeout, [&](Start &start) {
            Tensors to = {t}, copies = buffers_of(to);
            start.copy_back(to, copies);
            start.receive(copies[0], from);
        });
    }

    template <class F>
    WorkPtr exchange(OpType type, const char *title, const at::Tensor &t, const std::string &name,
                     Milliseconds limit, F fill) {
        auto operation = c10::make_intrusive<Operation>(calls_, name, title + sizeof "hvdlite",
                                                        Tensors{t}, limit);
        return started(type, title, {t}, operation, number_, fill);
    }

    template <class F>
    WorkPtr started(OpType type, const char *title, const Tensors &ins,
                    const c10::intrusive_ptr<Operation> &operation, uint64_t number, F fill) {
        check_alive();
        const char *event = as_gloo_ ? title + strlen(title) + 1 : title;
        auto work = c10::make_intrusive<HvdWork>(rank_, type, event, ins, operation, number);
        Start start(group_, operation);
        c10::InferenceMode mode;
        try {
            fill(start);
        } catch (...) {
            operation->deliver_nothing();
            throw;
        }
        if (!calls_->enter(*operation)) operation->abort();
        return work;
    }

    void check_reconfigures() const {
        TORCH_CHECK(reconfigure_, "hvdlite: the process group ", name_, " can't be reconfigured: ",
                    "pass enable_reconfigure=True to init_process_group");
    }

    void check_alive() const {
        TORCH_CHECK_WITH(DistBackendError, job_ == process.jobs, "hvdlite: the process group ",
                         name_, " has no ranks: ",
                         reconfigure_ ? "call reconfigure first"
                                      : "reconfigure has ended its job: make the group again");
        TORCH_CHECK_WITH(DistBackendError, !calls_->aborted(), "hvdlite: the process group ", name_,
                         " was aborted on this rank: destroy it, and make another one");
    }

    int job_; // number of the group's job; reconfigure() changes this and other fields
    const int group_;
    std::string name_;
    const c10::intrusive_ptr<Options> options_;
    c10::intrusive_ptr<Store> store_;
    c10::intrusive_ptr<Calls> calls_ = c10::make_intrusive<Calls>();
    std::atomic<bool> as_gloo_{false};
    PyObject *const reconfigure_;       // never freed; NULL: the ranks are fixed
    std::atomic<uint64_t> number_{0};   // number of the last call
    std::atomic<uint64_t> barriers_{0}; // number of monitored barriers
    std::mutex mutex_;                  // guards gloo_
    c10::intrusive_ptr<Backend> gloo_;  // NULL: not made yet
};

} // namespace hvdlite
