"""``import torch`` calls this (entry point ``torch.backends``): it makes hvdlite's name known.

It stands outside the package, because ``import hvdlite`` does more than a program wants that only
imports PyTorch. Nothing of hvdlite is imported before a process group asks for it.
"""

import os
import sys
from datetime import timedelta


def register_with_torch() -> None:
    """Register the backend ``hvdlite`` and the scheme ``hvdlite://``; again does nothing.

    With ``HVDLITE_AS_GLOO=1`` process groups that the program calls ``gloo`` are hvdlite's as well.
    """
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "HVDLITE"):
        return

    def create(told, unused):
        _correct_default(dist, sys._getframe(1).f_locals.get("pg"))
        later = getattr(told, "enable_reconfigure", False)  # PyTorch 2.14
        return make(told.store, told.group_rank, told.group_size, told.timeout, later)

    def make(store, rank, size, timeout, later):
        from hvdlite.torch.backend import place

        if not later:
            place.tell(store, rank, size, timeout)
        from hvdlite.torch.backend import groups, reconfigure

        return (reconfigure if later else groups).create(store, rank, size, timeout)

    def meet(*args, **kwargs):
        from hvdlite.torch.backend import groups

        return groups.meet(*args, **kwargs)

    dist.Backend.register_backend("hvdlite", create, extended_api=True, devices=["cpu"])
    dist.register_rendezvous_handler("hvdlite", meet)
    if os.environ.get("HVDLITE_AS_GLOO") == "1" and dist.is_gloo_available():
        _stand_in_for_gloo(dist, make)


def _stand_in_for_gloo(dist, make) -> None:
    """Let PyTorch make hvdlite's group wherever it makes Gloo's for a process group.

    PyTorch's names and lists stay: the backend is ``gloo`` for ``get_backend()`` and for programs.
    """
    c10d = dist.distributed_c10d
    real, register = c10d.ProcessGroupGloo, c10d.ProcessGroup._register_backend
    custom = c10d.ProcessGroup.BackendType.CUSTOM

    def is_ours(group) -> bool:
        return getattr(group, "name", str)() == "hvdlite"

    class StandIn(type):
        def __instancecheck__(cls, group) -> bool:
            return is_ours(group) or isinstance(group, real)

        def __call__(
            cls, store, rank, size, timeout=c10d.default_pg_timeout, enable_reconfigure=False
        ):
            timeout = getattr(timeout, "_timeout", timeout)  # of ProcessGroupGloo._Options
            if not isinstance(timeout, timedelta):
                timeout = timedelta(seconds=timeout)
            if rank == 0 and not cls.told:
                print("hvdlite: HVDLITE_AS_GLOO=1: gloo is hvdlite", file=sys.stderr, flush=True)
            cls.told = True
            group = make(store, rank, size, timeout, enable_reconfigure)
            type(group).create_device = staticmethod(real.create_device)
            return group

        def __getattr__(cls, name):
            return getattr(real, name)

    def _register_backend(self, device, kind, backend=None) -> None:
        """DistributedDataParallel takes a backend of Gloo's type for Gloo's class, in C++."""
        if is_ours(backend) and kind != custom:
            kind = custom
            if self.name() in ("gloo", "undefined"):
                self._set_default_backend(custom)
        register(self, device, kind, backend)

    c10d.ProcessGroup._register_backend = _register_backend
    dist.ProcessGroupGloo = c10d.ProcessGroupGloo = StandIn("ProcessGroupGloo", (), {"told": False})


def _correct_default(dist, group) -> None:
    """Make hvdlite the default backend of a group for which the program named none, or several.

    PyTorch has made Gloo the default of the first, nothing that of the second, and does not find
    it there: DistributedDataParallel fails, others warn. PyTorch does not tell a backend its group,
    which is a variable of the function that calls ``create``.
    """
    if hasattr(group, "_set_default_backend") and group.name() in ("gloo", "undefined"):
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
