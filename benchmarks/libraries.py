"""hvdlite and the systems that it is compared with, behind the interface of hvdlite.bench.

A function of ``OPEN`` starts the library on a communicator, and returns the library and the
communicator of the ranks that measure.
"""

import os
from typing import Callable

import numpy as np

from hvdlite.bench.cases import OPTIMIZERS, Case
from hvdlite.bench.library import Alone, HvdliteArrays, MXNetArrays, NumPyArrays, last_algorithm
from hvdlite.core import places
from hvdlite.launch import ranks
from hvdlite.launch.job import Job


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
    """Start a scheduler and as many servers as workers; on servers the import does not return."""
    workers = (comm.size - 1) // 2
    port = free_port(comm)
    everyone = [ranks.Rank(n, None, "localhost", "127.0.0.1", n, {}) for n in range(comm.size)]
    role = ranks.roles_of(everyone, Job([], workers, servers=workers))[comm.rank]
    os.environ.update(ranks.role_environment(role, workers, workers, "127.0.0.1", port))
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
    "ps": open_ps,
    "zero": lambda comm: (Sharded(join_gloo(comm), "DDP, ZeroRedundancyOptimizer"), comm),
    "alone": lambda comm: (Alone(), comm),
}
