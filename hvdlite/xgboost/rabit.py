"""The functions of ``xgboost.rabit``, which XGBoost 2 has removed, for scripts that need them.

In the script replace ``from xgboost import rabit`` by ``from hvdlite.xgboost import rabit``, and
start the script with ``mpirun`` or ``hvdliterun``.
"""

import contextlib
import sys
from typing import Any, Callable, Iterator, Optional

import numpy as np
from xgboost import collective
from xgboost.collective import (
    Op,
    broadcast,
    get_processor_name,
    get_rank,
    get_world_size,
    is_distributed,
)

from hvdlite import job
from hvdlite.core.module_state import ModuleState
from hvdlite.xgboost.communicator import communicator

__all__ = [
    "Op", "RabitContext", "allreduce", "broadcast", "finalize", "get_processor_name", "get_rank",
    "get_world_size", "init", "is_distributed", "tracker_print", "version_number",
]  # fmt: skip


class _Rabit(ModuleState):
    def begin(self) -> None:
        self.joined = contextlib.ExitStack()  # contains the open communicator()


_rabit = _Rabit()


def init(args: Any = None) -> None:
    """Call ``hvdlite.init()``; start XGBoost's collectives unless they run already. Collective.

    :param args: ignored: rabit's launcher passed the tracker's address in this argument.
    """
    job.init()
    if not is_distributed():
        _rabit.joined.enter_context(communicator())


def finalize() -> None:
    """Leave XGBoost's collectives. Collective; without :func:`init` the call does nothing.

    If an exception is being handled, as in a ``finally`` block, this rank leaves without waiting
    for the other ranks; ranks that wait for this rank in XGBoost get XGBoost's error.
    """
    _rabit.joined.__exit__(*sys.exc_info())


@contextlib.contextmanager
def RabitContext(args: Any = None) -> Iterator[None]:
    """Call :func:`init` with ``args`` before the block, and :func:`finalize` after the block."""
    init(args)
    with _rabit.joined:
        yield


def allreduce(
    data: np.ndarray, op: Op, prepare_fun: Optional[Callable[[np.ndarray], None]] = None
) -> np.ndarray:
    """Return ``op`` over all ranks of ``data``.

    :param data: an array of the same shape and dtype on every rank.
    :param op: Op.SUM, Op.MAX, Op.MIN or Op.BITWISE_OR.
    :param prepare_fun: called with ``data`` before the reduction.
    """
    if prepare_fun is not None:
        prepare_fun(data)
    return collective.allreduce(data, Op(op))


def tracker_print(msg: Any) -> None:
    """Print ``msg`` on rank 0, where the tracker runs."""
    collective.communicator_print(msg)


def version_number() -> int:
    """Return 0, which means that no checkpoint was loaded: XGBoost 1.0 has removed checkpoints."""
    return 0
