"""``import torch`` calls this (entry point ``torch.backends``): it makes hvdlite's name known.

It stands outside the package, because ``import hvdlite`` does more than a program wants that only
imports PyTorch. Nothing of hvdlite is imported before a process group asks for it.
"""

import sys


def register_with_torch() -> None:
    """Register the backend ``hvdlite`` and the scheme ``hvdlite://``; again does nothing."""
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "HVDLITE"):
        return

    def create(*args):
        _correct_default(dist, sys._getframe(1).f_locals.get("pg"))
        from hvdlite.torch.backend import place

        place.tell(*args)
        from hvdlite.torch.backend import groups

        return groups.create(*args)

    def meet(*args, **kwargs):
        from hvdlite.torch.backend import groups

        return groups.meet(*args, **kwargs)

    dist.Backend.register_backend("hvdlite", create, devices=["cpu"])
    dist.register_rendezvous_handler("hvdlite", meet)


def _correct_default(dist, group) -> None:
    """Make hvdlite the default backend of a group for which the program named none, or several.

    PyTorch has made Gloo the default of the first, nothing that of the second, and does not find
    it there: DistributedDataParallel fails, others warn. PyTorch does not tell a backend its group,
    which is a variable of the function that calls ``create``.
    """
    if hasattr(group, "_set_default_backend") and group.name() in ("gloo", "undefined"):
        group._set_default_backend(dist.ProcessGroup.BackendType.CUSTOM)
