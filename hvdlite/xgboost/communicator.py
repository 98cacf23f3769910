"""Starts XGBoost's own collectives on all ranks of an hvdlite job."""

import contextlib
from typing import Any, Dict, Iterator, Optional

import xgboost as xgb
from xgboost.tracker import RabitTracker

from hvdlite.core import topology
from hvdlite.core.addresses import addresses_of_ranks
from hvdlite.core.objects import result_of_root
from hvdlite.numpy import barrier

TRACKER_SECONDS = 300  # seconds for all ranks to join, and at the end to leave


class _Joined:
    """This process's membership: the arguments of XGBoost's ``init``, on rank 0 the tracker."""

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
        """Leave when all ranks leave, because XGBoost itself waits only a limited time for a late
        rank."""
        barrier()
        self._communicator.__exit__()
        if self.tracker:
            self.tracker.wait_for()

    def abandon(self) -> None:
        """Leave at once: ranks that wait for this rank inside XGBoost get XGBoost's error."""
        self._communicator.__exit__()


@contextlib.contextmanager
def communicator(host: Optional[str] = None, **options) -> Iterator[Dict[str, Any]]:
    """Let XGBoost train on all ranks inside the block. Collective; call ``hvdlite.init()`` first::

        with hvd.xgboost.communicator():
            data = xgb.QuantileDMatrix(part_of_x, part_of_y)  # this rank's rows
            booster = xgb.train(parameters, data, 100)  # the same model on every rank

    Rank 0 runs XGBoost's tracker and sends the other ranks its address. XGBoost's ranks are
    hvdlite's. The histograms go through XGBoost's own connections, not through hvdlite's.

    :param host: the address at which the others reach rank 0. The default is found out; it is the
        loopback if all ranks are on one host.
    :param options: more arguments of ``xgboost.collective.init``, such as ``dmlc_timeout``.
    :return: all arguments that XGBoost's ``init`` got.
    :raises ValueError: before ``init()``.
    :raises hvdlite.HvdliteError: on every rank: the tracker did not start; a rank has left.
    """
    joined = _Joined(host, options)
    try:
        yield joined.arguments
    except BaseException:
        joined.abandon()
        raise
    joined.leave()
