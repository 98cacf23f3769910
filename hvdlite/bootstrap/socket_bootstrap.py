"""How the processes of a job without MPI meet, and how they end together."""

import os
import time
from typing import Any, Callable, Optional, Set

from hvdlite.bootstrap import exchange, singleton_check
from hvdlite.bootstrap.bootstrap import Bootstrap
from hvdlite.bootstrap.socket_world import SocketWorld
from hvdlite.core import agent_protocol, member, places, start, topology
from hvdlite.core.launchers import TORCHELASTIC
from hvdlite.core.limits import ELASTIC_LIMIT
from hvdlite.core.log import logger
from hvdlite.core.membership import Membership
from hvdlite.core.native import HvdliteError
from hvdlite.core.world import World
from hvdlite.exit import forks, orphan
from hvdlite.machine.processes import stat_of

# A process that ends without calling init() tries to tell the ranks that wait in init(). All ranks
# started together, but a busy host may start rank 0 last. So the process tries for twice as long as
# it has run, within these limits in seconds:
ENDED_SECONDS = (2.0, 10.0)
# Ranks that are started together call init() within this time. If no launcher ends the other ranks,
# a failed rank stays for this time to tell its failure to ranks that connect.
START_SECONDS = 60.0


def _by_torchrun() -> bool:
    return TORCHELASTIC in os.environ


def _place() -> places.Place:
    found = start.without_mpi()
    assert found is not None  # None: the job uses MPI, not this class
    return found


class SocketBootstrap(Bootstrap):
    """The bootstrap of processes that know their ranks and rank 0's address from a launcher."""

    transport = "tcp"

    def __init__(self) -> None:
        self._joined = 0  # number of jobs that this process has joined at the address `_at`
        self._at: Optional[places.Place] = None
        self._informed: Set[int] = set()  # ranks that have ended, or know that this process ends

    def begin(self, comm: Any) -> None:
        """Prepare to join; raise ValueError if ``comm``, a communicator of MPI, is given."""
        if comm is not None:
            raise ValueError(f"init({comm!r}): {start.NEEDS_MPI.format('a communicator')}")
        if forks.is_child():
            raise HvdliteError(
                "init(): this process was forked from a rank, and a child is not a rank: call "
                "hvdlite.init() in the process that the launcher has started"
            )
        if _place() == places.ALONE:
            why = "has not told this process where the others are"
            singleton_check.refuse_if_one_of_several(f"the launcher {why}")
        if _by_torchrun() or _place().launcher == "srun" or agent_protocol.by_an_agent():
            orphan.watch()

    def join(
        self, comm: Any, patience: float, members: Membership, enter: Callable[[World], None]
    ) -> None:
        if _place() != self._at:
            self._at, self._joined, self._informed = _place(), 0, set()
        meeting = members.next_meeting()
        if meeting:
            place = _place()._replace(rank=meeting.rank, size=len(meeting.numbers))
            of_job = (place, meeting.key, meeting.epoch, patience, meeting.connections)
            met = exchange.Exchange(*of_job, ELASTIC_LIMIT)
            world = SocketWorld(met, meeting.numbers, meeting.patience)
        else:
            met = exchange.meet(_place(), self._joined, patience, self._informed)
            world = SocketWorld(met, members.first_numbers())
        self._joined += 1
        try:
            enter(world)
        except BaseException as error:
            if not topology.is_initialized():
                world.tell_of(error)
                world.leave(False)
            raise
        finally:
            members.note_unreached(world.unreached())

    def has_others(self) -> bool:
        place = _place()
        known = place.rank >= 0  # -1: MXNet's scheduler has not given the rank yet
        return known and place.size > 1 and not forks.is_child() and not member.is_worker()

    def rank(self) -> int:
        return _place().rank

    def report_end(self) -> None:
        shortest, longest = ENDED_SECONDS
        began = int(stat_of("/proc/self/stat")[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
        self._tell(min(max(shortest, 2 * age), longest))

    def end_all(self, code: int, patience: float) -> None:
        # If this process has joined, the other ranks see its connections end. Torchrun ends the
        # other ranks, so under torchrun one attempt to tell them is enough.
        if not self._joined and not self._tell(patience) and not _by_torchrun():
            more = START_SECONDS - patience
            text = "init(): rank %d has failed; it stays %.0f s to tell other ranks that connect"
            logger.warning(text, _place().rank, more)
            self._tell(more)
        os._exit(code)

    def _tell(self, seconds: float) -> bool:
        return exchange.report_end(_place(), self._joined, seconds, self._informed)
