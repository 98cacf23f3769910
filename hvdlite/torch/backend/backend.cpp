// hvdlite as PyTorch's backend for CPU tensors: runs calls of torch.distributed as collectives of
// hvdlite's C core.
//
// Gloo (group.h) runs calls that the core lacks, and calls on tensors that the core can't handle,
// such as sparse tensors.
#include "group.h"

namespace hvdlite {

class HvdBackend : public Group {
  public:
    using Group::Group;

    WorkPtr allreduce(Tensors &tensors, const AllreduceOptions &o) override {
        int op = several("all_reduce", tensors) ? NO_OP : op_on(tensors, o.reduceOp);
        if (op == NO_OP) return gloo().allreduce(tensors, o);
        return reduce_all(OpType::ALLREDUCE, tensors, op, o);
    }

    WorkPtr allreduce_coalesced(Tensors &tensors, const AllreduceCoalescedOptions &o) override {
        assertNonEmpty(refusal("all_reduce_coalesced"), tensors);
        int op = op_on(tensors, o.reduceOp);
        if (op == NO_OP) return gloo().allreduce_coalesced(tensors, o);
        return reduce_all(OpType::ALLREDUCE_COALESCED, tensors, op, o);
    }

    WorkPtr broadcast(Tensors &tensors, const BroadcastOptions &o) override {
        check_root("broadcast", o, tensors);
        if (several("broadcast", tensors) || !all_move(tensors))
            return gloo().broadcast(tensors, o);
        return run(OpType::BROADCAST, EVENT("broadcast"), tensors, tensors, o, [&](Start &start) {
            Tensors copies = apart_of(tensors);
            start.copy_back(tensors, copies);
            for (const at::Tensor &t : copies) start.broadcast(t, static_cast<int>(o.rootRank));
        });
    }

    // Runs an allreduce whose result only the root stores. The other ranks' tensors do not change.
    WorkPtr reduce(Tensors &tensors, const ReduceOptions &o) override {
        check_root("reduce", o, tensors);
        assertSingleElement(refusal("reduce"), tensors);
        int op = op_on(tensors, o.reduceOp);
        bool root = rank_ == o.rootRank;
        if (op == NO_OP) return gloo().reduce(tensors, o);
        return run(OpType::REDUCE, EVENT("reduce"), tensors, tensors, o, [&](Start &start) {
            start.compare_root(o.rootRank);
            if (op == FOLD) return fold_all(start, root ? tensors : Tensors(), tensors, o.reduceOp);
            Tensors copies = dense_of(tensors);
            if (root) start.copy_back(tensors, copies);
            for (const at::Tensor &t : copies) start.allreduce(t, root ? t : at::empty_like(t), op);
        });
    }

    WorkPtr allgather(std::vector<Tensors> &outs, Tensors &ins,
                      const AllgatherOptions &o) override {
        auto refuse = refusal("all_gather");
        assertNonEmptyInputTensorList(refuse, ins.size());
        assertInputOutputTensorListsSameSize(refuse, outs.size(), ins.size());
        check_alike(ins, ins[0]);
        for (const Tensors &list : outs) {
            if (list.size() != ins.size() * size_)
                refuse("invalid output tensor list: expected " +
                       std::to_string(ins.size() * size_) + " tensors, got " +
                       std::to_string(list.size()));
            check_alike(list, ins[0]);
        }
        if (several("all_gather", ins) || !all_move(ins) || !all_move(outs[0]))
            return gloo().allgather(outs, ins, o);
        return run(OpType::ALLGATHER, EVENT("all_gather"), ins, outs[0], o,
                   [&](Start &start) { gather_list(start, outs[0], ins[0]); });
    }

    WorkPtr allgather_coalesced(std::vector<Tensors> &outs, Tensors &ins,
                                const AllgatherOptions &o) override {
        auto refuse = refusal("all_gather_coalesced");
        assertAllgatherCoalescedOutputTensorLists(refuse, outs, ins.size(), size_);
        for (const Tensors &list : outs)
            for (size_t i = 0; i < ins.size(); i++) {
                if (list[i].numel() != ins[i].numel())
                    refuse("invalid size of output tensor at index " + std::to_string(i));
                assertTypeMatch(refuse, ins[i].options(), list, i);
            }
        if (!all_move(ins)) return gloo().allgather_coalesced(outs, ins, o);
        return run(OpType::ALLGATHER_COALESCED, EVENT("all_gather"), ins, outs[0], o,
                   [&](Start &start) {
                       start.expect_tensors(ins);
                       Tensors copies, flats;
                       for (const at::Tensor &in : ins) {
                           flats.push_back(room_for({size_, in.numel()}, host_options(in)));
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
        check_times(out, in, size_);
        if (!moves(in) || !moves(out)) return gloo()._allgather_base(out, in, o);
        return gather_into(OpType::_ALLGATHER_BASE, {out}, {in}, o);
    }

    WorkPtr allgather_into_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const AllgatherOptions &o) override {
        assertInputOutputTensorListsSameSize(refusal("coalesced call"), outs.size(), ins.size());
        for (size_t i = 0; i < ins.size(); i++) check_times(outs[i], ins[i], size_);
        if (!all_move(ins) || !all_move(outs))
            return gloo().allgather_into_tensor_coalesced(outs, ins, o);
        return gather_into(OpType::COALESCED, outs, ins, o);
    }

    WorkPtr reduce_scatter(Tensors &outs, std::vector<Tensors> &ins,
                           const ReduceScatterOptions &o) override {
        assertSingleElementOutput(refusal("reduce_scatter"), outs);
        assertScatterInputTensorList(refusal("reduce_scatter"), ins, size_);
        check_alike(ins[0], outs[0]);
        if (op_on(ins[0], o.reduceOp) == NO_OP || !moves(outs[0]))
            return gloo().reduce_scatter(outs, ins, o);
        return scatter_sums(OpType::REDUCE_SCATTER, EVENT("reduce_scatter"), outs,
                            {flat_of(ins[0], outs)}, o);
    }

    WorkPtr _reduce_scatter_base(at::Tensor &out, at::Tensor &in,
                                 const ReduceScatterOptions &o) override {
        check_times(in, out, size_);
        if (op_on(in, o.reduceOp) == NO_OP || !moves(out))
            return gloo()._reduce_scatter_base(out, in, o);
        return scatter_sums(OpType::_REDUCE_SCATTER_BASE, EVENT("_reduce_scatter_base"), {out},
                            {in}, o);
    }

    WorkPtr reduce_scatter_tensor_coalesced(Tensors &outs, Tensors &ins,
                                            const ReduceScatterOptions &o) override {
        assertInputOutputTensorListsSameSize(refusal("coalesced call"), outs.size(), ins.size());
        for (size_t i = 0; i < ins.size(); i++) check_times(ins[i], outs[i], size_);
        if (op_on(ins, o.reduceOp) == NO_OP || !all_move(outs))
            return gloo().reduce_scatter_tensor_coalesced(outs, ins, o);
        return scatter_sums(OpType::COALESCED, EVENT("_reduce_scatter_base"), outs, ins, o);
    }

    WorkPtr alltoall_base(at::Tensor &out, at::Tensor &in, std::vector<int64_t> &out_splits,
                          std::vector<int64_t> &in_splits, const AllToAllOptions &o) override {
        check_parts(out, out_splits, size_);
        check_parts(in, in_splits, size_);
        TORCH_CHECK(out.is_contiguous(),
                    "hvdlite: the output of all_to_all_single must be contiguous");
        check_type(out, in);
        if (out_splits.empty() && in_splits.empty()) check_alike(out, in);
        if (!moves(in) || !moves(out))
            return gloo().alltoall_base(out, in, out_splits, in_splits, o);
        return run(OpType::ALLTOALL_BASE, EVENT("all_to_all"), {in}, {out}, o, [&](Start &start) {
            // A split is a number of elements, not of rows, because the rows of output and input
            // may differ in length.
            auto splits = elements_of(in, in_splits), expected = elements_of(out, out_splits);
            if (in_splits.empty() && out_splits.empty()) splits = {};
            Tensors to = {out}, copies = buffers_of(to);
            start.copy_back(to, copies);
            start.alltoall(dense(in), copies[0], in.numel(), out.numel(), elements_each(in), splits,
                           expected);
        });
    }

    WorkPtr alltoall(Tensors &outs, Tensors &ins, const AllToAllOptions &o) override {
        assertAllToAllTensorListSizes(refusal("all_to_all"), outs.size(), ins.size(), size_);
        for (size_t i = 0; i < ins.size(); i++)
            check_type(outs[i], ins[0]), check_type(ins[i], ins[0]);
        if (!all_move(ins) || !all_move(outs)) return gloo().alltoall(outs, ins, o);
        return run(OpType::ALLTOALL, EVENT("all_to_all"), ins, outs, o, [&](Start &start) {
            at::Tensor in = flat_of(ins, outs), out = start.flat_for(outs, ins);
            start.alltoall(in, out, in.numel(), out.numel(), elements_each(in), numbers_of(ins),
                           numbers_of(outs));
        });
    }

    // Runs an alltoall in which all rows go to the root. The root copies its own rows.
    WorkPtr gather(std::vector<Tensors> &outs, Tensors &ins, const GatherOptions &o) override {
        auto refuse = refusal("gather");
        bool root = rank_ == o.rootRank;
        assertRootRank(refuse, o.rootRank, size_);
        assertSingleElementInput(refuse, ins);
        if (root) {
            assertGatherOutputTensorList(refuse, outs, size_);
            check_alike(outs[0], ins[0]);
        } else
            assertEmptyOutputTensorList(refuse, outs);
        if (!all_move(ins)) return gloo().gather(outs, ins, o);
        Tensors to = root ? outs[0] : Tensors();
        return run(OpType::GATHER, EVENT("gather"), ins, to, o, [&](Start &start) {
            start.compare_root(o.rootRank);
            std::vector<int64_t> splits(size_);
            splits.at(o.rootRank) = root ? 0 : 1;
            if (root) to[rank_].copy_(ins[0].reshape(to[rank_].sizes()));
            at::Tensor in = dense(ins[0]), out = start.flat_for(without_own(to), ins);
            start.alltoall(in, out, root ? 0 : 1, root ? size_ - 1 : 0, Elements(in).number,
                           splits);
        });
    }

    // Runs an alltoall in which all rows come from the root. The root copies its own rows.
    WorkPtr scatter(Tensors &outs, std::vector<Tensors> &ins, const ScatterOptions &o) override {
        auto refuse = refusal("scatter");
        bool root = rank_ == o.rootRank;
        assertRootRank(refuse, o.rootRank, size_);
        assertSingleElementOutput(refuse, outs);
        if (root) {
            assertScatterInputTensorList(refuse, ins, size_);
            check_alike(ins[0], outs[0]);
        } else
            assertEmptyInputTensorList(refuse, ins);
        if (!all_move(outs)) return gloo().scatter(outs, ins, o);
        return run(OpType::SCATTER, EVENT("scatter"), outs, outs, o, [&](Start &start) {
            start.compare_root(o.rootRank);
            std::vector<int64_t> splits(size_, root ? 1 : 0);
            splits.at(o.rootRank) = 0;
            Tensors to = root ? Tensors{at::empty({0}, host_options(outs[0]))} : buffers_of(outs);
            at::Tensor in = root ? flat_of(without_own(ins[0]), outs) : to[0].new_empty({0});
            // after flat_of, because the root's output may be an input for another rank
            if (root) outs[0].copy_(ins[0][rank_].reshape(outs[0].sizes()));
            if (!root) start.copy_back(outs, to);
            start.alltoall(in, to[0], root ? size_ - 1 : 0, root ? 0 : 1, Elements(outs[0]).number,
                           splits);
        });
    }

    WorkPtr barrier(const BarrierOptions &o) override {
        return run(OpType::BARRIER, EVENT("barrier"), {}, {}, o, [&](Start &start) {
            start.compare("");
            at::Tensor nothing = at::zeros({1}, at::kByte);
            start.allreduce(nothing, nothing, HVD_MAX);
        });
    }

    WorkPtr allreduce_sparse(Tensors &tensors, const AllreduceOptions &o) override {
        return gloo().allreduce_sparse(tensors, o);
    }

  private:
    Refusal refusal(const char *call) const { return {call, rank_, size_}; }

    template <class O> void check_root(const char *call, const O &o, const Tensors &tensors) const {
        assertRootRank(refusal(call), o.rootRank, size_);
        assertRootTensor(refusal(call), o.rootTensor, static_cast<int64_t>(tensors.size()));
    }

    // Returns true if this rank passes several tensors for one result: only Gloo can do this.
    bool several(const char *call, const Tensors &tensors) const {
        if (tensors.size() == 1) return false;
        assertNonEmpty(refusal(call), tensors);
        assertLayoutMatch(refusal(call), tensors);
        assertTypeAndSizesMatch(refusal(call), tensors);
        return true;
    }

    template <class O> WorkPtr reduce_all(OpType type, const Tensors &tensors, int op, const O &o) {
        return run(type, EVENT("all_reduce"), tensors, tensors, o, [&](Start &start) {
            start.expect_tensors(tensors);
            if (op == FOLD) return fold_all(start, tensors, tensors, o.reduceOp);
            Tensors copies = apart_of(tensors);
            start.copy_back(tensors, copies);
            for (const at::Tensor &t : copies) start.allreduce(t, t, op);
        });
    }

    // Returns the number of elements of each rank's part; without splits all parts are equal.
    std::vector<int64_t> elements_of(const at::Tensor &t, std::vector<int64_t> splits) const {
        if (splits.empty()) return std::vector<int64_t>(size_, t.numel() / size_);
        for (int64_t &n : splits) n *= t.numel() / std::max<int64_t>(t.size(0), 1);
        return splits;
    }

    Tensors without_own(Tensors tensors) const {
        if (!tensors.empty()) tensors.erase(tensors.begin() + rank_);
        return tensors;
    }

    void gather_list(Start &start, const Tensors &outs, const at::Tensor &in) {
        start.allgather(dense(in), start.flat_for(outs, {in}), size_);
    }

    template <class O>
    WorkPtr gather_into(OpType type, const Tensors &outs, const Tensors &ins, const O &o) {
        return run(type, EVENT("_all_gather_base"), ins, outs, o, [&](Start &start) {
            start.expect_tensors(ins);
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
            start.expect_tensors(ins);
            Tensors copies = op == FOLD ? matrices_of(outs, size_) : buffers_of(outs);
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

    void fold_all(Start &start, const Tensors &outs, const Tensors &ins, const ReduceOp &op) {
        Tensors matrices = matrices_of(ins, size_);
        start.fold_rows(outs, matrices, op);
        for (size_t i = 0; i < ins.size(); i++) start.allgather(dense(ins[i]), matrices[i], size_);
    }
};

} // namespace hvdlite

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    using namespace hvdlite;
    py::module_::import("torch._C._distributed_c10d");
    process.keeper = new Keeper;
    m.def("use", [](const py::function &address_of, py::object allocate) {
        process.bucket = allocate.release().ptr();
#define CORE_FIND(name)                                                                            \
    process.core.name = reinterpret_cast<name##_type>(address_of(#name).cast<uintptr_t>());
        CORE(CORE_FIND)
    });
    m.def("begin_job", [] { process.jobs++; });
    m.def("stage", [](bool all) { process.stage_all = all; });
    m.def("stop", [] { process.keeper->stop(); }, py::call_guard<py::gil_scoped_release>());
    // PyTorch calls these methods of a group by their names in Python.
    py::class_<HvdBackend, c10::intrusive_ptr<HvdBackend>, c10d::Backend>(m, "Group")
        .def_property_readonly("options", &HvdBackend::getBackendOptions)
        .def("_as_gloo", &HvdBackend::as_gloo)
        .def("_set_default_timeout", &HvdBackend::setTimeout);
    m.def("make", [](int rank, int size, int group, const std::string &name, double seconds,
                     const c10::intrusive_ptr<c10d::Store> &store, py::object reconfigure) {
        Milliseconds timeout(static_cast<int64_t>(seconds * 1000));
        return c10::static_intrusive_pointer_cast<c10d::Backend>(c10::make_intrusive<HvdBackend>(
            rank, size, group, name, timeout, store, std::move(reconfigure)));
    });
}
