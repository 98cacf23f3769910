"""How processes that a launcher of MPI has started join a job, and end together."""

import os
from typing import Any, Callable

from hvdlite.bootstrap import singleton_check
from hvdlite.bootstrap.bootstrap import Bootstrap
from hvdlite.bootstrap.mpi import life, meeting
from hvdlite.bootstrap.mpi.loading import name_of
from hvdlite.core import mpi, start
from hvdlite.core.agent_protocol import ELASTIC
from hvdlite.core.membership import Membership
from hvdlite.core.native import HvdliteError
from hvdlite.core.world import World
from hvdlite.exit import orphan


class MPIBootstrap(Bootstrap):
    """The bootstrap of processes that a launcher of MPI, or a script with mpi4py, has started."""

    transport = "mpi"

    def begin(self, comm: Any) -> None:
        life.begin()
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
        return life.is_running() and mpi.ranks() > 1

    def rank(self) -> int:
        return mpi.rank()

    def report_end(self) -> None:
        meeting.report_end()

    def end_by(self, until: float, code: int, message: str) -> None:
        life.end_by(until, code, message)

    def end_all(self, code: int, patience: float) -> None:
        life.end_all(code)


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
    if start.is_by_mpi() or mpi.ranks() > 1:
        raise HvdliteError(
            "elastic training does not run over MPI, which has started this process: start the "
            f"job by `hvdliterun --elastic -n {mpi.ranks()} python train.py`"
        )
