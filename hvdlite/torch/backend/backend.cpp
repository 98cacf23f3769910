// hvdlite as PyTorch's backend for CPU tensors: what torch.distributed calls, as tensors of the core.
//
// torch.distributed fixes the order of a group's calls, so the group and a number that recurs name a
// tensor of the core, which then finds whether the ranks' calls fit together. Gloo, made beside it,
// takes what the core has no kind or no type for: send and recv, sparse tensors.
#include "start.h"
#include "works.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Utils.hpp>
#include <torch/csrc/utils/pybind.h>

namespace hvdlite {

using namespace c10d;

inline PyObject *empty_shared; // of hvdlite.torch; for ever

class HvdBackend : public Backend {
  public:
    struct Options : Backend::Options {
        explicit Options(Milliseconds timeout) : Backend::Options("hvdlite", timeout) {}
    };

    // name: of its tensors in the core, equal on all ranks and of no other group.
    HvdBackend(int rank, int size, int group, std::string name, Milliseconds timeout,
               c10::intrusive_ptr<Backend> gloo)
        : Backend(rank, size), group_(group), name_(std::move(name)),
          options_(c10::make_intrusive<Options>(timeout)), gloo_(std::move(gloo)) {}

    const std::string getBackendName() const override { return "hvdlite"; }
    void setSequenceNumberForGroup() override {}
    uint64_t getSequenceNumberForGroup() override { return number_; }

    // ---- that not every version of PyTorch asks for: without `override` ----

    c10::intrusive_ptr<Backend::Options> getBackendOptions() { return options_; }
    void setTimeout(Milliseconds timeout) {
        options_->timeout = timeout;
        set_timeout(*gloo_, timeout, 0);
    }

    // DistributedDataParallel's buckets, which all ranks make at once.
    bool supportsTensorAlloc(c10::DeviceIndex) { return group_ == 0 && size_ > 1; }
    at::Tensor allocateTensor(long size, at::TensorOptions options) {
        py::gil_scoped_acquire gil;
        auto type = c10::typeMetaToScalarType(options.dtype());
        return py::handle(empty_shared)(size, py::cast(type)).cast<at::Tensor>();
    }

    // ---- on the core ----

    WorkPtr allreduce(Tensors &tensors, const AllreduceOptions &o) override {
        int op = op_on(tensors, o.reduceOp);
        if (op == NO_OP)
            return other(OpType::ALLREDUCE, "hvdlite:all_reduce", tensors,
                         gloo_->allreduce(tensors, o));
        return reduce_all(OpType::ALLREDUCE, tensors, op, o);
    }

    WorkPtr allreduce_coalesced(Tensors &tensors, const AllreduceCoalescedOptions &o) override {
        int op = op_on(tensors, o.reduceOp);
        if (op == NO_OP)
            return other(OpType::ALLREDUCE_COALESCED, "hvdlite:all_reduce", tensors,
                         gloo_->allreduce_coalesced(tensors, o));
        return reduce_all(OpType::ALLREDUCE_COALESCED, tensors, op, o);
    }

    WorkPtr broadcast(Tensors &tensors, const BroadcastOptions &o) override {
        if (!all_move(tensors))
            return other(OpType::BROADCAST, "hvdlite:broadcast", tensors,
                         gloo_->broadcast(tensors, o));
        return run(OpType::BROADCAST, "hvdlite:broadcast", tensors, tensors, o, [&](Start &start) {
            Tensors copies = dense_of(tensors);
            start.copy_back(tensors, copies);
            for (const at::Tensor &t : copies) start.broadcast(t, static_cast<int>(o.rootRank));
        });
    }

    // An allreduce; what ranks other than the root give stays as it is.
    WorkPtr reduce(Tensors &tensors, const ReduceOptions &o) override {
        int op = op_on(tensors, o.reduceOp);
        bool root = rank_ == o.rootRank;
        if (op == NO_OP)
            return other(OpType::REDUCE, "hvdlite:reduce", tensors, gloo_->reduce(tensors, o));
        if (op == FOLD)
            return fold_all(OpType::REDUCE, "hvdlite:reduce", root ? tensors : Tensors(), tensors,
                            o);
        return run(OpType::REDUCE, "hvdlite:reduce", tensors, tensors, o, [&](Start &start) {
            Tensors copies = dense_of(tensors);
            if (root) start.copy_back(tensors, copies);
            for (const at::Tensor &t : copies) start.allreduce(t, root ? t : at::empty_like(t), op);
        });
    }

    WorkPtr allgather(std::vector<Tensors> &outs, Tensors &ins,
                      const AllgatherOptions &o) override {
        TORCH_CHECK(ins.size() == 1 && outs.size() == 1,
                    "hvdlite: allgather takes one tensor a rank");
        check_alike(outs[0], ins[0]);
        if (!all_move(ins) || !all_move(outs[0]))
            return other(OpType::ALLGATHER, "hvdlite:all_gather", ins,
                         gloo_->allgather(outs, ins, o));
        return run(OpType::ALLGATHER, "hvdlite:all_gather", ins, outs[0], o,
                   [&](Start &start) { gather_list(start, outs[0], ins[0]); });
    }

    WorkPtr allgather_coalesced(std::vector<Tensors> &outs, Tensors &ins,
                                const AllgatherOptions &o) override {
        for (const Tensors &list : outs) TORCH_CHECK(list.size() == ins.size(), ONE_EACH);
        TORCH_CHECK(static_cast<int>(outs.size()) == size_, ONE_EACH);
        if (!all_move(ins))
            return other(OpType::ALLGATHER_COALESCED, "hvdlite:all_gather", ins,
                         gloo_->allgather_coalesced(outs, ins, o));
        return run(OpType::ALLGATHER_COALESCED, "hvdlite:all_gather", ins, {}, o,
                   [&](Start &start) {
                       Tensors copies, flats;
                       for (size_t i = 0; i < ins.size(); i++)
                           for (int r = 0; r < size_; r++) check_alike(outs[r][i], ins[i]);
                       for (const at::Tensor &in : ins) {
                           flats.push_back(at::empty({size_, in.numel()}, in.options()));
                           start.allgather(dense(in), flats.back(), size_);
                           for (int r = 0; r < size_; r++)
                               copies.push_back(flats.back()[r].view(in.sizes()));
                       }
                       Tensors all;
                       for (size_t i = 0; i < ins.size(); i++)
                           for (int r = 0; r < size_; r++) all.push_back(outs[r][i]);
                       start.copy_back(all, copies);
                   });
    }

    WorkPtr _allgather_base(at::Tensor &out, at::Tensor &in, const AllgatherOptions &o) override {
        check_times(out, in);
        if (!moves(in) || !moves(out))
            return other(OpType::_ALLGATHER_BASE, "hvdlite:_all_gather_base", {in},
                         gloo_->_allgather_base(out, in, o));
        return gather_into(OpType::_ALLGATHER_BASE, {out}, {in}, o);
    }

    WorkPtr allgather_into_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const AllgatherOptions &o) override {
        TORCH_CHECK(outs.size() == ins.size(), ONE_EACH);
        for (size_t i = 0; i < ins.size(); i++) check_times(outs[i], ins[i]);
        if (!all_move(ins) || !all_move(outs))
            return gloo_->allgather_into_tensor_coalesced(outs, ins, o);
        return gather_into(OpType::COALESCED, outs, ins, o);
    }

    WorkPtr reduce_scatter(Tensors &outs, std::vector<Tensors> &ins,
                           const ReduceScatterOptions &o) override {
        TORCH_CHECK(ins.size() == 1 && outs.size() == 1, "hvdlite: reduce_scatter takes one list");
        check_alike(ins[0], outs[0]);
        if (op_on(ins[0], o.reduceOp) == NO_OP || !moves(outs[0]))
            return other(OpType::REDUCE_SCATTER, "hvdlite:reduce_scatter", outs,
                         gloo_->reduce_scatter(outs, ins, o));
        return scatter_sums(OpType::REDUCE_SCATTER, "hvdlite:reduce_scatter", outs,
                            {flat_of(ins[0])}, o);
    }

    WorkPtr _reduce_scatter_base(at::Tensor &out, at::Tensor &in,
                                 const ReduceScatterOptions &o) override {
        check_times(in, out);
        if (op_on(in, o.reduceOp) == NO_OP || !moves(out))
            return other(OpType::_REDUCE_SCATTER_BASE, "hvdlite:_reduce_scatter_base", {in},
                         gloo_->_reduce_scatter_base(out, in, o));
        return scatter_sums(OpType::_REDUCE_SCATTER_BASE, "hvdlite:_reduce_scatter_base", {out},
                            {in}, o);
    }

    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const ReduceScatterOptions &o) override {
        TORCH_CHECK(outs.size() == ins.size(), ONE_EACH);
        for (size_t i = 0; i < ins.size(); i++) check_times(ins[i], outs[i]);
        if (op_on(ins, o.reduceOp) == NO_OP || !all_move(outs))
            return gloo_->reduce_scatter_tensor_coalesced(outs, ins, o);
        return scatter_sums(OpType::COALESCED, "hvdlite:_reduce_scatter_base", outs, ins, o);
    }

    WorkPtr alltoall_base(at::Tensor &out, at::Tensor &in, std::vector<int64_t> &out_splits,
                          std::vector<int64_t> &in_splits, const AllToAllOptions &o) override {
        check_parts(out, out_splits);
        check_parts(in, in_splits);
        TORCH_CHECK(out.is_contiguous(),
                    "hvdlite: the output of all_to_all_single must be contiguous");
        check_type(out, in);
        if (!moves(in) || !moves(out))
            return other(OpType::ALLTOALL_BASE, "hvdlite:all_to_all", {in},
                         gloo_->alltoall_base(out, in, out_splits, in_splits, o));
        return run(OpType::ALLTOALL_BASE, "hvdlite:all_to_all", {in}, {out}, o, [&](Start &start) {
            int64_t rows = std::max(in.size(0), out.size(0));
            const at::Tensor &longer = in.size(0) == rows ? in : out;
            start.alltoall(dense(in), out, in.size(0), out.size(0),
                           rows ? Elements(longer).number / rows : 1, in_splits);
        });
    }

    WorkPtr alltoall(Tensors &outs, Tensors &ins, const AllToAllOptions &o) override {
        TORCH_CHECK(static_cast<int>(ins.size()) == size_ && outs.size() == ins.size(), ONE_EACH);
        for (size_t i = 0; i < ins.size(); i++)
            check_type(outs[i], ins[0]), check_type(ins[i], ins[0]);
        if (!all_move(ins) || !all_move(outs))
            return other(OpType::ALLTOALL, "hvdlite:all_to_all", ins,
                         gloo_->alltoall(outs, ins, o));
        return run(OpType::ALLTOALL, "hvdlite:all_to_all", ins, outs, o, [&](Start &start) {
            std::vector<int64_t> splits;
            int64_t out_rows = 0;
            for (const at::Tensor &t : ins) splits.push_back(t.numel());
            for (const at::Tensor &t : outs) out_rows += t.numel();
            at::Tensor in = flat_of(ins), out = at::empty({out_rows}, in.options());
            start.deal(out, outs);
            start.alltoall(in, out, in.numel(), out_rows,
                           Elements(at::empty({1}, in.options())).number, splits);
        });
    }

    // An alltoall in which all rows are for the root.
    WorkPtr gather(std::vector<Tensors> &outs, Tensors &ins, const GatherOptions &o) override {
        TORCH_CHECK(ins.size() == 1, "hvdlite: gather takes one tensor a rank");
        bool root = rank_ == o.rootRank;
        TORCH_CHECK(outs.size() == (root ? 1 : 0),
                    "hvdlite: only the root of a gather gives a list");
        if (root) check_alike(outs[0], ins[0]);
        if (!all_move(ins))
            return other(OpType::GATHER, "hvdlite:gather", ins, gloo_->gather(outs, ins, o));
        Tensors to = root ? outs[0] : Tensors();
        return run(OpType::GATHER, "hvdlite:gather", ins, to, o, [&](Start &start) {
            std::vector<int64_t> splits(size_);
            splits.at(o.rootRank) = 1;
            at::Tensor in = dense(ins[0]),
                       out = at::empty({root ? size_ * in.numel() : 0}, in.options());
            if (root) start.deal(out, to);
            start.alltoall(in, out, 1, root ? size_ : 0, Elements(in).number, splits);
        });
    }

    // An alltoall in which all rows are of the root's.
    WorkPtr scatter(Tensors &outs, std::vector<Tensors> &ins, const ScatterOptions &o) override {
        TORCH_CHECK(outs.size() == 1, "hvdlite: scatter takes one tensor a rank");
        bool root = rank_ == o.rootRank;
        TORCH_CHECK(ins.size() == (root ? 1 : 0),
                    "hvdlite: only the root of a scatter gives a list");
        if (root) check_alike(ins[0], outs[0]);
        if (!all_move(outs))
            return other(OpType::SCATTER, "hvdlite:scatter", outs, gloo_->scatter(outs, ins, o));
        return run(OpType::SCATTER, "hvdlite:scatter", outs, outs, o, [&](Start &start) {
            std::vector<int64_t> splits(size_, root ? 1 : 0);
            at::Tensor out = at::empty(outs[0].sizes(), outs[0].options());
            at::Tensor in = root ? flat_of(ins[0]) : at::empty({0}, out.options());
            start.copy_back(outs, {out});
            start.alltoall(in, out, root ? size_ : 0, 1, Elements(out).number, splits);
        });
    }

    WorkPtr barrier(const BarrierOptions &o) override {
        return run(OpType::BARRIER, "hvdlite:barrier", {}, {}, o, [&](Start &start) {
            at::Tensor nothing = at::zeros({1}, at::kByte);
            start.allreduce(nothing, nothing, HVD_MAX);
        });
    }

    // ---- by Gloo ----

    WorkPtr allreduce_sparse(Tensors &tensors, const AllreduceOptions &o) override {
        return gloo_->allreduce_sparse(tensors, o);
    }
    WorkPtr send(Tensors &tensors, int to, int tag) override {
        return other(OpType::SEND, "hvdlite:send", tensors, gloo_->send(tensors, to, tag));
    }
    WorkPtr recv(Tensors &tensors, int from, int tag) override {
        return other(OpType::RECV, "hvdlite:recv", tensors, gloo_->recv(tensors, from, tag));
    }
    WorkPtr recvAnysource(Tensors &tensors, int tag) override {
        return other(OpType::RECVANYSOURCE, "hvdlite:recvAnySource", tensors,
                     gloo_->recvAnysource(tensors, tag));
    }
    void monitoredBarrier(const BarrierOptions &o, bool all) override {
        gloo_->monitoredBarrier(o, all);
    }

  private:
    static constexpr const char *ONE_EACH = "hvdlite: expected one tensor for each rank";

    WorkPtr other(OpType type, const char *title, const Tensors &tensors, WorkPtr work) {
        return c10::make_intrusive<GlooWork>(rank_, type, title, tensors, std::move(work));
    }

    template <class O, class F>
    WorkPtr run(OpType type, const char *title, const Tensors &ins, const Tensors &outs, const O &o,
                F fill) {
        uint64_t number = ++number_;
        auto limit = o.timeout == kUnsetTimeout ? options_->timeout : o.timeout;
        auto operation =
            c10::make_intrusive<Operation>(plans_, name_, static_cast<int>(number % Plans::NAMES),
                                           title + sizeof "hvdlite", outs, limit, !is_async(o, 0));
        auto work = c10::make_intrusive<HvdWork>(rank_, type, title, ins, operation, number);
        Start start(group_, operation);
        at::NoGradGuard no_grad;
        try {
            fill(start);
        } catch (...) {
            operation->deliver_nothing();
            throw;
        }
        return work;
    }

    template <class O> WorkPtr reduce_all(OpType type, const Tensors &tensors, int op, const O &o) {
        if (op == FOLD) return fold_all(type, "hvdlite:all_reduce", tensors, tensors, o);
        return run(type, "hvdlite:all_reduce", tensors, tensors, o, [&](Start &start) {
            Tensors copies = dense_of(tensors);
            start.copy_back(tensors, copies);
            for (const at::Tensor &t : copies) start.allreduce(t, t, op);
        });
    }

    void gather_list(Start &start, const Tensors &outs, const at::Tensor &in) {
        at::Tensor flat = at::empty({size_ * in.numel()}, in.options());
        start.deal(flat, outs);
        start.allgather(dense(in), flat, size_);
    }

    template <class O>
    WorkPtr gather_into(OpType type, const Tensors &outs, const Tensors &ins, const O &o) {
        return run(type, "hvdlite:_all_gather_base", ins, outs, o, [&](Start &start) {
            Tensors copies = buffers_of(outs);
            start.copy_back(outs, copies);
            for (size_t i = 0; i < ins.size(); i++)
                start.allgather(dense(ins[i]), copies[i], size_);
        });
    }

    template <class O>
    WorkPtr scatter_sums(OpType type, const char *title, const Tensors &outs, const Tensors &ins,
                         const O &o) {
        int op = op_on(ins, o.reduceOp);
        return run(type, title, ins, outs, o, [&](Start &start) {
            Tensors copies = op == FOLD ? matrices_of(outs) : buffers_of(outs);
            if (op == FOLD)
                start.fold_rows(outs, copies, o.reduceOp);
            else
                start.copy_back(outs, copies);
            for (size_t i = 0; i < ins.size(); i++) {
                if (op == FOLD)
                    start.alltoall(dense(ins[i]), copies[i], size_, size_, Elements(outs[i]).number,
                                   {});
                else
                    start.reducescatter(dense(ins[i]), copies[i], op, size_);
            }
        });
    }

    template <class O>
    WorkPtr fold_all(OpType type, const char *title, const Tensors &outs, const Tensors &ins,
                     const O &o) {
        return run(type, title, ins, outs, o, [&](Start &start) {
            Tensors matrices = matrices_of(ins);
            start.fold_rows(outs, matrices, o.reduceOp);
            for (size_t i = 0; i < ins.size(); i++)
                start.allgather(dense(ins[i]), matrices[i], size_);
        });
    }

    // For each tensor a row of every rank.
    Tensors matrices_of(const Tensors &tensors) {
        Tensors matrices;
        for (const at::Tensor &t : tensors)
            matrices.push_back(at::empty({size_, t.numel()}, t.options()));
        return matrices;
    }

    static Tensors dense_of(const Tensors &tensors) {
        Tensors copies;
        for (const at::Tensor &t : tensors) copies.push_back(dense(t));
        return copies;
    }

    // The tensors, or where they are not contiguous others to write to.
    static Tensors buffers_of(const Tensors &tensors) {
        Tensors buffers;
        for (const at::Tensor &t : tensors)
            buffers.push_back(t.is_contiguous() ? t : at::empty(t.sizes(), t.options()));
        return buffers;
    }

    static void check_type(const at::Tensor &a, const at::Tensor &b) {
        TORCH_CHECK(a.scalar_type() == b.scalar_type(),
                    "hvdlite: tensors of one call must have one ", "type: got ", a.scalar_type(),
                    " and ", b.scalar_type());
    }

    void check_alike(const at::Tensor &a, const at::Tensor &b) {
        check_type(a, b);
        TORCH_CHECK(a.numel() == b.numel(),
                    "hvdlite: tensors of one call must be equally large: got ", a.sizes(), " and ",
                    b.sizes());
    }

    void check_alike(const Tensors &many, const at::Tensor &one) {
        TORCH_CHECK(static_cast<int>(many.size()) == size_, ONE_EACH);
        for (const at::Tensor &t : many) check_alike(t, one);
    }

    void check_times(const at::Tensor &large, const at::Tensor &small) {
        check_type(large, small);
        TORCH_CHECK(large.numel() == small.numel() * size_, "hvdlite: expected ", size_,
                    " times as many elements: got ", large.sizes(), " and ", small.sizes());
    }

    void check_parts(const at::Tensor &t, const std::vector<int64_t> &splits) {
        TORCH_CHECK(t.dim() > 0, "hvdlite: all_to_all_single takes no tensors without dimensions");
        checkSplitSizes(splits, t, size_);
    }

    const int group_;
    const std::string name_;
    const c10::intrusive_ptr<Options> options_;
    const c10::intrusive_ptr<Backend> gloo_;
    const c10::intrusive_ptr<Plans> plans_ = c10::make_intrusive<Plans>();
    std::atomic<uint64_t> number_{0}; // of the last call
};

} // namespace hvdlite

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    using namespace hvdlite;
    py::module_::import("torch._C._distributed_c10d");
    process = getpid();
    m.def("use", [](uintptr_t start, uintptr_t finish, uintptr_t watch, uintptr_t drop,
                    uintptr_t plan, uintptr_t run, py::object allocate) {
        empty_shared = allocate.release().ptr();
        core = {reinterpret_cast<decltype(core.start)>(start),
                reinterpret_cast<decltype(core.finish)>(finish),
                reinterpret_cast<decltype(core.watch)>(watch),
                reinterpret_cast<decltype(core.drop)>(drop),
                reinterpret_cast<decltype(core.plan)>(plan),
                reinterpret_cast<decltype(core.run)>(run)};
    });
    m.def("stop", [] { keeper.stop(); }, py::call_guard<py::gil_scoped_release>());
    m.def("make", [](int rank, int size, int group, const std::string &name, double seconds,
                     const c10::intrusive_ptr<c10d::Backend> &gloo) {
        Milliseconds timeout(static_cast<int64_t>(seconds * 1000));
        return c10::static_intrusive_pointer_cast<c10d::Backend>(
            c10::make_intrusive<HvdBackend>(rank, size, group, name, timeout, gloo));
    });
}
