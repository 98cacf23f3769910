"""Registers hvdlite as a backend of PyTorch; ``import torch`` calls this (``torch.backends``).

The module is outside the package, because a program that only imports PyTorch does not want the
effects of ``import hvdlite``. This module imports hvdlite when a process group needs hvdlite.
"""

import os
import sys
from datetime import timedelta


def register_with_torch() -> None:
    """Register the backend ``hvdlite`` and the scheme ``hvdlite://``; a second call does nothing.

    With ``HVDLITE_AS_GLOO=1``, process groups of the backend ``gloo`` use hvdlite, too.
    """
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "HVDLITE"):
        return

    def create(options, unused):
        _correct_default(dist, sys._getframe(1).f_locals.get("pg"))
        later = getattr(options, "enable_reconfigure", False)  # PyTorch 2.14
        return make(options.store, options.group_rank, options.group_size, options.timeout, later)

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
    """Make PyTorch create hvdlite's group wherever it would create Gloo's.

    PyTorch's names and lists do not change: ``get_backend()`` and programs still see ``gloo``.
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
            forks = sys.modules.get("hvdlite.exit.forks")
            if forks and forks.is_child():  # hvdlite can't run in a forked child
                _say(cls.printed, rank, "a forked child of a rank uses PyTorch's own gloo")
                more = {"enable_reconfigure": True} if enable_reconfigure else {}
                return real(store, rank, size, timeout, **more)
            timeout = getattr(timeout, "_timeout", timeout)  # of an _Options
            if not isinstance(timeout, timedelta):
                timeout = timedelta(seconds=timeout)
            _say(cls.printed, rank, "gloo is hvdlite")
            group = make(store, rank, size, timeout, enable_reconfigure)
            group._as_gloo()
            type(group).create_device = staticmethod(real.create_device)
            return group

        def __getattr__(cls, name):
            return getattr(real, name)

    def _register_backend(self, device, kind, backend=None) -> None:
        """Register as CUSTOM: DistributedDataParallel takes GLOO to mean Gloo's C++ class."""
        if is_ours(backend) and kind != custom:
            kind = custom
            if self.name() in ("gloo", "undefined"):
                self._set_default_backend(custom)
        register(self, device, kind, backend)

    c10d.ProcessGroup._register_backend = _register_backend
    dist.ProcessGroupGloo = c10d.ProcessGroupGloo = StandIn(
        "ProcessGroupGloo", (), {"printed": set()}
    )


def _say(printed: set, rank: int, what: str) -> None:
    """Print ``what`` once, on rank 0."""
    if rank == 0 and what not in printed:
        print(f"hvdlite: HVDLITE_AS_GLOO=1: {what}", file=sys.stderr, flush=True)
    printed.add(what)


def _correct_default(dist, group) -> None:
    """Make hvdlite the default backend of a group if the program named no backend or several.

    PyTorch sets the default to Gloo (no name) or to nothing (several names). The group has no such
    backend, so DistributedDataParallel fails, and other calls warn. PyTorch does not pass the group
    to ``create``, so ``create`` reads it from a local variable of its caller.
    """
    if hasattr(group, "_set_default_backend") and group.name() in ("gloo", "undefined"):
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
