"""Trainers for PyTorch: DistributedOptimizer, and hvdlite's hook for DistributedDataParallel."""

import contextlib
import copy
import functools
import os
import socket

import torch
from one_process import MOMENTUM, RATE
from trainers import EVERY, Trainer, trainer

import hvdlite.torch as hvd


class Network(torch.nn.Module):
    def __init__(self, weights) -> None:
        super().__init__()
        self.w = torch.nn.ParameterList([torch.tensor(w) for w in weights])

    def forward(self, x, layers):
        hidden = torch.tanh(x @ self.w[0] + self.w[1])
        return hidden if layers == 1 else hidden @ self.w[2] + self.w[3]


class OfTorch(Trainer):
    hvd = hvd
    sums_passes = True
    scaler = None

    def __init__(self, weights, **options) -> None:
        self.module = self.network = Network(weights)
        self.optimizer, self.options = None, options

    def make(self) -> None:
        # the first step calls make(), when it is known which weights are frozen from the start
        if self.optimizer is None:
            self.optimizer = torch.optim.SGD(self.network.parameters(), RATE, MOMENTUM)
            self.distribute(**self.options)

    def begin(self, *passes, layers=0, factor=1) -> None:
        self.make()
        for x in passes:
            loss = self.module(torch.tensor(x), layers).square().sum(1).mean() * factor
            (self.scaler.scale(loss) if self.scaler else loss).backward()

    def train(self, *passes, **options) -> None:
        self.begin(*passes, **options)
        with self.synchronized():
            self.scaler.step(self.optimizer) if self.scaler else self.optimizer.step()
        if self.scaler:
            self.scaler.update()
        self.optimizer.zero_grad()

    def synchronized(self):
        return contextlib.nullcontext()

    def scale_loss(self) -> None:
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=100)

    def freeze(self, numbers) -> None:
        for i, param in enumerate(self.network.w):
            param.requires_grad_(i not in numbers)

    def weights(self) -> list:
        return [param.detach().numpy().copy() for param in self.network.w]


@trainer
class TorchOptimizer(OfTorch):
    @classmethod
    def make_alone(cls, weights) -> None:
        cls(weights).make()

    joins = saves = True
    takes = (*EVERY, "groups")
    names_of_both = ("optimizer", "(6, 9)", "(6, 8)")

    def distribute(self, groups=None, **options) -> None:
        named = self.network.named_parameters()
        if groups:
            options["groups"] = [[self.network.w[i] for i in group] for group in groups]
        self.optimizer = hvd.DistributedOptimizer(self.optimizer, named, **options)

    def saved(self) -> dict:
        # PyTorch's optimizer shares tensors with the dict
        return copy.deepcopy(self.optimizer.state_dict())

    def load(self, states: dict) -> None:
        self.make()
        self.optimizer.load_state_dict(states)

    def committed(self):
        return hvd.elastic.TorchState(optimizer=self.optimizer)

    def add_parameter(self) -> None:
        self.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))]})

    def follow(self, root: int) -> None:
        hvd.broadcast_parameters(self.network.state_dict(), root_rank=root)
        hvd.broadcast_optimizer_state(self.optimizer, root_rank=root)


@trainer
class TorchOptimizerInTwoCalls(TorchOptimizer):
    """A step consists of two calls, as in scripts that clip gradients between the calls."""

    saves = False

    def synchronized(self):
        self.optimizer.synchronize()
        return self.optimizer.skip_synchronize()


@functools.lru_cache
def meet() -> None:
    """Make a process group of Gloo, which DistributedDataParallel needs."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with socket.create_server(("localhost", 0)) as free:
        url = hvd.broadcast_object(f"tcp://localhost:{free.getsockname()[1]}", 0)
    rank, size = hvd.rank(), hvd.size()
    torch.distributed.init_process_group("gloo", url, rank=rank, world_size=size)


@trainer
class HookOfDDP(OfTorch):
    takes = ()
    thaws = False
    names_of_both = ()  # PyTorch itself compares the networks
    state = hvd.AllreduceState

    @classmethod
    def make_alone(cls, weights) -> None:
        cls.state()

    def distribute(self) -> None:
        """Do nothing: train() makes DistributedDataParallel when frozen weights are known."""

    def train(self, *passes, **options) -> None:
        if self.module is self.network:
            meet()
            DDP = torch.nn.parallel.DistributedDataParallel
            self.module = DDP(self.network, bucket_cap_mb=1e-4, find_unused_parameters=True)
            self.module.register_comm_hook(self.state(), hvd.allreduce_hook)
        before = hvd.stats()["tensors"]
        super().train(*passes, **options)
        assert hvd.stats()["tensors"] > before, "PyTorch has not called the hook"


@trainer
class HookOfDDPWithoutState(HookOfDDP):
    state = staticmethod(lambda: None)
    numbered = False
