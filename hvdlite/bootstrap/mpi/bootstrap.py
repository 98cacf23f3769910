"""How processes that a launcher of MPI has started join a job, and end together."""

import os
import time
from typing import Any, Callable, Optional, Tuple

from hvdlite.bootstrap import singleton_check
from hvdlite.bootstrap.bootstrap import Bootstrap
from hvdlite.bootstrap.mpi import meeting
from hvdlite.bootstrap.mpi.loading import forget_confined, name_of
from hvdlite.bootstrap.mpi.world import limit_call
from hvdlite.core import mpi, start
from hvdlite.core.agent_protocol import ELASTIC
from hvdlite.core.listening import has_fault_tolerance
from hvdlite.core.membership import Membership
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import HvdliteError
from hvdlite.core.world import World
from hvdlite.exit import forks, orphan


class _Life(ModuleState):
    def begin(self) -> None:
        self.initialized = False  # True: hvdlite has initialized MPI
        self.limit: Optional[Tuple[float, int, str]] = None  # the arguments of end_by()


_life = _Life()


class MPIBootstrap(Bootstrap):
    """The bootstrap of processes that a launcher of MPI, or a script with mpi4py, has started."""

    transport = "mpi"

    def begin(self, comm: Any) -> None:
        _begin()
        if meeting.is_alone(comm):
            reason = f"{name_of(mpi.version())} knows of no other process"
            singleton_check.refuse_if_one_of_several(reason)
        if os.environ.get(ELASTIC) == "1":
            refuse_elastic()
        if mpi.ranks() > 1:
            orphan.watch()

    def join(
        self, comm: Any, patience: float, members: Membership, enter: Callable[[World], None]
    ) -> None:
        enter(meeting.meet(comm, patience))

    def before_end(self, leave: Callable[[], None]) -> None:
        mpi.before_finalize(leave)

    def has_others(self) -> bool:
        return _is_running() and mpi.ranks() > 1

    def rank(self) -> int:
        return mpi.rank()

    def report_end(self) -> None:
        meeting.report_end()

    def end_by(self, until: float, code: int, message: str) -> None:
        """Limit MPI_Finalize: at ``until`` this process ends, and the launcher ends the others."""
        _life.limit = _life.limit or (until, code, message)

    def end_all(self, code: int, patience: float) -> None:
        """End all ranks. Open MPI 5's mpirun ends all if one rank ends without MPI_Finalize.

        MPI_Abort would crash or hang this mpirun if another rank waits in MPI_Finalize. But two
        cases need MPI_Abort: a job with MPI's fault tolerance survives the end of a rank, and an
        mpirun that has started a shell does not see the end of the rank that the shell runs.
        """
        started = os.environ.get("PRTE_LAUNCHED") and orphan.of_the_launcher() == [os.getpid()]
        if started and not has_fault_tolerance(os.environ):
            os._exit(code)
        mpi.abort(code)


def _is_running() -> bool:
    return mpi.is_running() and not forks.is_child()


def _begin() -> None:
    """Initialize MPI, unless MPI runs already.

    :raises HvdliteError: MPI can't begin in this process.
    """
    if forks.is_child():
        raise HvdliteError(
            "init(): this process was forked from a process that runs MPI, and a child has no MPI: "
            "call hvdlite.init() in the process that the launcher has started"
        )
    if mpi.is_finalized():
        raise HvdliteError(
            "init(): MPI.Finalize() has been called, and MPI can't start again. Call "
            "MPI.Finalize() after the last use of hvdlite, or leave it to hvdlite, which calls it "
            "when Python exits"
        )
    if not mpi.is_initialized():
        mpi.initialize()
        _life.initialized = True
    forget_confined()


def end() -> None:
    """Finalize MPI if hvdlite initialized MPI or end_by() was called. The last exit function."""
    if not _is_running() or not (_life.initialized or _life.limit):
        return
    until, code, message = _life.limit or (float("inf"), 0, "")
    with limit_call(until - time.monotonic(), code, message):
        mpi.finalize()


class MPIMembership(Membership):
    """The processes that MPI has started. If one dies, MPI ends all of them.

    So hvd.elastic.run works only in a job of one process.
    """

    def begin(self, world: World) -> None:
        refuse_elastic()


def refuse_elastic() -> None:
    """Raise HvdliteError if a launcher of MPI has started this process.

    When a rank dies, MPI ends the others. A process without a launcher is the only rank, and may
    use elastic training.
    """
    if start.has_mpi_ranks():
        raise HvdliteError(
            "elastic training does not run over MPI, which has started this process: start the "
            f"job by `hvdliterun --elastic -n {mpi.ranks()} python train.py`"
        )
