"""Gloo in place of NCCL, for tests of hvdlite.torch on machines without GPUs."""

import threading

import torch.distributed as dist


class LikeNccl:
    """A group of Gloo whose abort() ends its allreduces, as NCCL's does and Gloo's does not."""

    def __init__(self, store, rank, size):
        self._group, self._aborted = dist.ProcessGroupGloo(store, rank, size), threading.Event()

    def __getattr__(self, name):
        return getattr(self._group, name)

    def abort(self):
        self._aborted.set()

    def allreduce(self, some, options):
        return _Work(self._group.allreduce(some, options), self._aborted)


class _Work:
    def __init__(self, work, aborted):
        self._work, self._aborted = work, aborted

    def wait(self):
        while not self._work.is_completed():
            if self._aborted.wait(1e-4):
                raise RuntimeError("aborted")
        self._work.wait()
