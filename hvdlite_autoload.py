"""``import torch`` calls this (entry point ``torch.backends``): it makes hvdlite's name known.

It stands outside the package, because ``import hvdlite`` does more than a program wants that only
imports PyTorch. Nothing of hvdlite is imported before a process group asks for it.
"""


def register_with_torch() -> None:
    """Register the backend ``hvdlite`` and the scheme ``hvdlite://``; again does nothing."""
    import torch.distributed as dist

    if not dist.is_available() or hasattr(dist.Backend, "HVDLITE"):
        return

    def create(*args):
        from hvdlite.torch.backend import place

        place.tell(*args)
        from hvdlite.torch.backend import groups

        return groups.create(*args)

    def meet(*args, **kwargs):
        from hvdlite.torch.backend import groups

        return groups.meet(*args, **kwargs)

    dist.Backend.register_backend("hvdlite", create, devices=["cpu"])
    dist.register_rendezvous_handler("hvdlite", meet)
