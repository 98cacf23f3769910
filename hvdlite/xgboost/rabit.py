"""The names of ``xgboost.rabit``, which XGBoost 2 has removed, for scripts that still use them.

``from hvdlite.xgboost import rabit`` in place of ``from xgboost import rabit``; the script is then
started by ``mpirun`` or ``hvdliterun``.
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
        self.joined = contextlib.ExitStack()  # closing it leaves XGBoost's collective


_rabit = _Rabit()


def init(args: Any = None) -> None:
    """Join the job, and XGBoost's collective on all its ranks. Collective; twice does nothing.

    :param args: ignored: rabit's own launcher passed the tracker's address in it.
    """
    job.init()
    if not is_distributed():
        _rabit.joined.enter_context(communicator())


def finalize() -> None:
    """Leave XGBoost's collective. Collective; without it this does nothing.

    If called while an exception passes, as in a ``finally``, this process leaves at once; ranks
    that wait for it inside XGBoost get an error of XGBoost.
    """
    _rabit.joined.__exit__(*sys.exc_info())


@contextlib.contextmanager
def RabitContext(args: Any = None) -> Iterator[None]:
    """Do :func:`init` with ``args`` before the block, and :func:`finalize` after it."""
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
    """Print ``msg`` where the tracker runs: on rank 0."""
    collective.communicator_print(msg)


def version_number() -> int:
    """Return 0: no checkpoint was loaded. XGBoost 1.0 has removed checkpoints."""
    return 0
