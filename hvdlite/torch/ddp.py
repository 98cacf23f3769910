"""A communication hook with which DistributedDataParallel reduces its gradients over hvdlite."""

import gc
from typing import Dict, List, Optional, Tuple

import torch
import torch.distributed as dist

from hvdlite.core.agreement import meet
from hvdlite.core.handles import Handle
from hvdlite.core.module_state import ModuleState
from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.torch.ops import allreduce_async_


class AllreduceState:
    """The state of :func:`allreduce_hook` for one model.

    Every rank makes its AllreduceStates in the same order.

    :param process_set: the ranks of the model's process group.
    """

    def __init__(self, process_set: ProcessSet = global_process_set) -> None:
        self.process_set = process_set
        self.owner, self.met = owner_name("ddp"), -1
        self.under_way: List[Tuple[torch.futures.Future, Handle]] = []


class _Only(ModuleState):
    def begin(self) -> None:
        self.state: Optional[AllreduceState] = None  # for register_comm_hook(None, allreduce_hook)


_only = _Only()


def allreduce_hook(
    state: Optional[AllreduceState], bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket of gradients over ranks, for DistributedDataParallel::

        model = torch.nn.parallel.DistributedDataParallel(model)
        model.register_comm_hook(None, hvd.allreduce_hook)

    hvdlite reduces a bucket while backward computes the next bucket. The call for the last bucket
    waits for all buckets. The model still needs a process group, such as Gloo's, to check and
    broadcast its parameters.

    :param state: None for a single model; an :class:`AllreduceState` for each of several models.
    :raises hvdlite.HvdliteError: during backward, if a rank has failed or left.
    """
    if state is None:
        state = _only.state = _only.state or AllreduceState()
    state.met = meet(state.owner, state.met, state.process_set)
    future: torch.futures.Future = torch.futures.Future()
    name = f"{state.owner}.bucket{bucket.index()}"
    handle = allreduce_async_(bucket.buffer(), name=name, op=Average, process_set=state.process_set)
    state.under_way.append((future, handle))
    if bucket.is_last():
        _finish(state)
    return future


def _finish(state: AllreduceState) -> None:
    """Complete all futures, then raise the first error."""
    under_way, state.under_way = state.under_way, []
    first: Optional[Exception] = None
    for pending, handle in under_way:
        try:
            pending.set_result(handle.synchronize())
        except Exception as error:
            pending.set_exception(error)
            first = first or error
    if first:
        raise first


def refuse_reduced_by_ddp(names: Dict[torch.Tensor, str]) -> None:
    """Raise ValueError if a DistributedDataParallel also reduces gradients of these parameters.

    DDP would write averages to ``.grad`` while the allreduce of hvdlite's optimizer reads it.
    """
    # without a process group there is no DistributedDataParallel
    if not (dist.is_available() and dist.is_initialized()):
        return
    kind = torch.nn.parallel.DistributedDataParallel
    for module in [each for each in gc.get_objects() if issubclass(type(each), kind)]:
        both = [names[param] for param in module.parameters() if param in names]
        if both:
            raise ValueError(
                f"parameter '{both[0]}': a DistributedDataParallel reduces its gradient, and so "
                "does this DistributedOptimizer, so ranks would get different weights: use the "
                "plain optimizer with DistributedDataParallel, or give hvd.DistributedOptimizer "
                "parameters of the unwrapped module"
            )
