"""Starts XGBoost's own collectives on all ranks of an hvdlite job."""

import contextlib
from typing import Any, Dict, Iterator, Optional

import xgboost as xgb
from xgboost.tracker import RabitTracker

from hvdlite.core import topology
from hvdlite.core.addresses import addresses_of_ranks
from hvdlite.core.objects import result_of_root
from hvdlite.numpy import barrier

TRACKER_SECONDS = 300  # how long the tracker waits for all ranks to join, and to leave at the end


class _Joined:
    """This rank's connection to XGBoost's collectives. Rank 0 also has the tracker."""

    def __init__(self, host: Optional[str], options: Dict[str, Any]) -> None:
        self.tracker: Any = None
        address = addresses_of_ranks()[0] if host is None else host
        arguments = result_of_root(lambda: self._start_tracker(address), 0, "xgboost.tracker")
        task = f"{topology.rank():08d}"  # XGBoost numbers its ranks in the order of these names
        self.arguments = {**arguments, "dmlc_task_id": task, **options}
        self._communicator = xgb.collective.CommunicatorContext(**self.arguments)
        self._communicator.__enter__()

    def _start_tracker(self, address: str) -> Dict[str, Any]:
        self.tracker = RabitTracker(
            n_workers=topology.size(), host_ip=address, sortby="task", timeout=TRACKER_SECONDS
        )
        self.tracker.start()
        return self.tracker.worker_args()

    def leave(self) -> None:
        """Leave XGBoost's collectives together with all ranks. The barrier waits without a time
        limit for late ranks; XGBoost's own wait has a limit."""
        barrier()
        self._communicator.__exit__()
        if self.tracker:
            self.tracker.wait_for()

    def abandon(self) -> None:
        """Leave without waiting: ranks that wait for this rank in XGBoost get XGBoost's error."""
        self._communicator.__exit__()


@contextlib.contextmanager
def communicator(host: Optional[str] = None, **options) -> Iterator[Dict[str, Any]]:
    """Let XGBoost train on all ranks inside the block. Collective; call ``hvdlite.init()`` first::

        with hvd.xgboost.communicator():
            data = xgb.QuantileDMatrix(part_of_x, part_of_y)  # this rank's rows
            booster = xgb.train(parameters, data, 100)  # the same model on every rank

    Rank 0 runs XGBoost's tracker and sends the tracker's address to the other ranks. A process has
    the same rank in XGBoost and in hvdlite. XGBoost sends histograms over its own connections.

    :param host: the address at which other ranks connect to rank 0. By default hvdlite chooses the
        address: the loopback address if all ranks are on one host.
    :param options: more arguments of ``xgboost.collective.init``, such as ``dmlc_timeout``.
    :return: all arguments that were passed to XGBoost's ``init``.
    :raises ValueError: ``hvdlite.init()`` was not called.
    :raises hvdlite.HvdliteError: on every rank: the tracker did not start, or a rank has left.
    """
    joined = _Joined(host, options)
    try:
        yield joined.arguments
    except BaseException:
        joined.abandon()
        raise
    joined.leave()
