"""hvdlite and the systems that it is compared with, behind the interface of hvdlite.bench.

A function of ``OPEN`` starts the library on a communicator, and returns the library and the
communicator of the ranks that measure.
"""

import ctypes
import os
import sys
from typing import Callable, Optional

import numpy as np

from benchmarks.harness import ROOT
from hvdlite.bench.cases import OPTIMIZERS, Case
from hvdlite.bench.library import Alone, HvdliteArrays, MXNetArrays, NumPyArrays, last_algorithm
from hvdlite.core import places
from hvdlite.launch import assignment, ranks
from hvdlite.launch.job import Job

DEEPSPEED = ROOT / "build" / "deepspeed"
UCC_LOOP = ROOT / "build" / "ucc" / "loop.so"
BUILT = {"deepspeed": DEEPSPEED, "ucc": UCC_LOOP}  # what `make small-peers` builds


def open_hvdlite(comm):
    import hvdlite as hvd

    hvd.init()
    return HvdliteArrays(hvd, "hvdlite", last_algorithm), comm


def open_horovod(comm):
    import horovod.mxnet as hvd

    hvd.init()
    return MXNetArrays(hvd, "Horovod"), comm


class MPI(NumPyArrays):
    """Plain MPI on NumPy arrays, with one call per array."""

    def takes(self, case: Case) -> bool:
        return case.kind == "allreduce" and case.memory == "private"

    def starter(self, kind: str) -> Callable:
        return self.allreduce

    def allreduce(self, array, name: str, priority: int):
        from mpi4py import MPI

        self.hvd.Allreduce(MPI.IN_PLACE, array)
        return array


class Gloo(MPI):
    """PyTorch's process group for CPUs: starts the calls of all arrays, then waits for all."""

    def make(self, shape, dtype: str):
        import torch

        return torch.zeros(shape, dtype=getattr(torch, dtype))

    def fill(self, array, value: float) -> None:
        array.fill_(value)

    def allreduce(self, array, name: str, priority: int):
        return array, self.hvd.all_reduce(array, async_op=True)

    def finish(self, started) -> list:
        for _, handle in started:
            handle.wait()
        return [array for array, _ in started]

    def to_numpy(self, array) -> np.ndarray:
        return array.numpy()


class DeepSpeed(Gloo):
    """DeepSpeed's allreduce on one host's CPUs; a call returns when the sum is complete."""

    def allreduce(self, array, name: str, priority: int):
        return self.hvd(array)

    def finish(self, started) -> list:
        return list(started)


def load_deepspeed():
    """Import DeepSpeed's allreduce; raise ImportError if it is not compiled for this PyTorch."""
    import torch  # noqa: F401  has the libraries that the operation needs

    sys.path.insert(0, str(DEEPSPEED))
    import deepspeed_shm_comm

    return deepspeed_shm_comm


def deepspeed_fails() -> Optional[str]:
    """Return why DeepSpeed's operation can't run, or None."""
    try:
        load_deepspeed()
    except ImportError as why:
        return f"its operation is not compiled: {why}"
    return None


def open_deepspeed(comm) -> Callable:
    """Return DeepSpeed's function that sums a tensor in place, in shared memory; it spins."""
    import torch

    operation = load_deepspeed()
    # DeepSpeed also makes the name of its shared memory from these variables
    where = {"LOCAL_SIZE": str(comm.size), "MASTER_ADDR": "localhost"}
    os.environ.update(where, MASTER_PORT=str(free_port(comm)))
    operation.initialize(comm.size, comm.rank)
    return torch.ops.deepspeed.inference_all_reduce_


class UCC(MPI):
    """UCC's persistent allreduces, one for each name."""

    def __init__(self, comm, label: str) -> None:
        super().__init__(comm, label)
        self.plan, self.plans = open_ucc(comm), {}

    def allreduce(self, array, name: str, priority: int):
        if name not in self.plans:
            self.plans[name] = self.plan(array)
        self.plans[name](1)
        return array


def open_ucc(comm) -> Callable:
    """Return ``plan``: ``plan(array)(count)`` sums a float32 array ``count`` times with UCC, in a
    loop in C (benchmarks/ucc_loop.c)."""
    library = ctypes.CDLL(str(UCC_LOOP))
    library.ucc_loop_plan.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    library.ucc_loop_run.argtypes = ctypes.c_void_p, ctypes.c_int

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    def gather(mine: int, everyone: int, nbytes: int) -> int:
        parts = [comm.bcast(ctypes.string_at(mine, nbytes), root) for root in range(comm.size)]
        ctypes.memmove(everyone, b"".join(parts), nbytes * comm.size)
        return 0

    status = library.ucc_loop_open(comm.rank, comm.size, gather)
    assert status == 0, f"UCC's status is {status}"

    def plan(array: np.ndarray) -> Callable[[int], None]:
        handle = ctypes.c_void_p()
        assert not library.ucc_loop_plan(array.ctypes.data, array.size, ctypes.byref(handle))

        def repeat(count: int, _alive=(array, gather)) -> None:
            assert library.ucc_loop_run(handle, count) == 0, "UCC failed"

        return repeat

    return plan


def join_gloo(comm, host: str = "127.0.0.1"):
    """Join a process group of Gloo whose store is on this host; return torch.distributed."""
    import torch.distributed as dist

    address = f"tcp://{host}:{free_port(comm)}"
    dist.init_process_group("gloo", init_method=address, rank=comm.rank, world_size=comm.size)
    return dist


class ParameterServer(MXNetArrays):
    """MXNet's parameter server: every worker pushes arrays to servers, and pulls their sum."""

    idles = True

    def __init__(self, kvstore) -> None:
        super().__init__(None, "parameter server")
        self.kvstore, self.keys = kvstore, {}

    def takes(self, case: Case) -> bool:
        """Return True for training steps, and for arrays up to 16 MiB: 64 MiB take seconds."""
        small = case.memory == "private" and case.label.isdigit() and case.nbytes <= 2**24
        return small or (case.kind == "step" and case.memory == "trainer")

    def starter(self, kind: str) -> Callable:
        return self.allreduce

    def allreduce(self, array, name: str, priority: int):
        if name not in self.keys:
            # higher than the keys of a trainer, which are 0, 1, ...
            self.keys[name] = 10**6 + len(self.keys)
            self.kvstore.init(self.keys[name], array)
        self.kvstore.pushpull(self.keys[name], array, out=array, priority=priority)
        return array

    def trainer(self, params, case: Case):
        import mxnet as mx

        return mx.gluon.Trainer(params, "sgd", {"learning_rate": 0.01}, kvstore=self.kvstore)


def open_ps(comm):
    """Start a scheduler and as many servers as workers. On a server, importing MXNet never ends."""
    workers = (comm.size - 1) // 2
    port = free_port(comm)
    everyone = [ranks.Rank(n, None, "localhost", "127.0.0.1", n, {}) for n in range(comm.size)]
    role = ranks.roles_of(everyone, Job([], workers, servers=workers))[comm.rank]
    os.environ.update(assignment.role_environment(role, workers, workers, "127.0.0.1", port))
    mine = comm.Split(role.kind == "worker")
    import mxnet as mx

    return ParameterServer(mx.kv.create("dist_sync")), mine


class Sharded(Gloo):
    """PyTorch's DistributedDataParallel over Gloo with a ZeroRedundancyOptimizer."""

    shared = 0

    def takes(self, case: Case) -> bool:
        return case.kind == "update" and case.memory == "trainer"

    def updating(self, case: Case):
        return ShardedUpdating(case)


class ShardedUpdating:
    """Updates sharded weights; backward computes nothing, and returns the given gradients."""

    def __init__(self, case: Case) -> None:
        import torch
        from torch import nn
        from torch.distributed.optim import ZeroRedundancyOptimizer

        class Given(torch.autograd.Function):
            @staticmethod
            def forward(context, gradients, *weights):
                context.gradients = gradients
                return weights[0].new_zeros(())

            @staticmethod
            def backward(context, _):
                return (None, *context.gradients)

        class Module(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                each = (nn.Parameter(torch.zeros(shape)) for shape in case.shapes)
                self.params = nn.ParameterList(each)

            def forward(self, gradients):
                return Given.apply(gradients, *self.params)

        torch.set_num_threads(1)
        self.module = nn.parallel.DistributedDataParallel(Module(), gradient_as_bucket_view=True)
        self.gradients = [torch.zeros(shape) for shape in case.shapes]
        optimizer = OPTIMIZERS[case.optimizer]
        rates = {"lr" if k == "learning_rate" else k: v for k, v in optimizer.params.items()}
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        self.optimizer = ZeroRedundancyOptimizer(
            self.module.parameters(), kinds[optimizer.name], parameters_as_bucket_view=True, **rates
        )

    def write(self, value: float) -> None:
        for gradient in self.gradients:
            gradient.fill_(value)
        self.optimizer.zero_grad()
        self.loss = self.module(self.gradients)

    def step(self) -> None:
        self.loss.backward()
        self.optimizer.step()

    def weights(self):
        return (weight.detach().numpy() for weight in self.module.parameters())


def free_port(comm) -> int:
    return comm.bcast(places.free_port())


OPEN = {
    "hvdlite": open_hvdlite,
    "horovod": open_horovod,
    "mpi": lambda comm: (MPI(comm.Dup(), "MPI"), comm),
    "gloo": lambda comm: (Gloo(join_gloo(comm), "Gloo"), comm),
    "deepspeed": lambda comm: (DeepSpeed(open_deepspeed(comm), "DeepSpeed"), comm),
    "ucc": lambda comm: (UCC(comm, "UCC"), comm),
    "ps": open_ps,
    "zero": lambda comm: (Sharded(join_gloo(comm), "DDP, ZeroRedundancyOptimizer"), comm),
    "alone": lambda comm: (Alone(), comm),
}
