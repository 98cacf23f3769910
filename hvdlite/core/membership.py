"""Membership: which processes make up a job, and go on together."""

import socket
from typing import Dict, List, NamedTuple, Optional, Protocol, Set

from hvdlite.core.world import World

# Votes of ranks whose training function has ended, and the verdict on all votes: bits.
SOMETHING_FAILED, ALL_IS_DONE, LET_REPLACEMENTS_IN = 0, 1, 2


class Meeting(NamedTuple):
    """The processes of the next job, which are connected to its rank 0 already.

    :param numbers: of the processes, by rank: a process keeps its number in all jobs.
    :param epoch: how often the processes have met.
    """

    rank: int
    numbers: List[int]
    epoch: int
    key: bytes
    connections: Dict[int, socket.socket]  # of rank 0: by rank; of another rank: to rank 0
    patience: float  # seconds for a rank to get its connections with all others


class Membership(Protocol):
    """The processes of a job.

    The bodies here are those of a job whose processes stay the same: it ends with any of them.
    """

    def is_elastic(self) -> bool:
        """Tell whether this process goes on when others die, and they when it does."""
        return False

    def next_meeting(self) -> Optional[Meeting]:
        """Return how those that are left have met, or meet now; None: nobody has died. Collective.

        :raises HvdliteError: some did not come in time, or this process is with the fewer.
        """
        return None

    def first_numbers(self) -> Optional[List[int]]:
        """Return the numbers of those that begin together; None: they are their ranks."""
        return None

    def entered(self, world: World) -> None:
        """Take note of the world of the job that has begun. Collective."""
        return

    def note_unreached(self, numbers: Set[int]) -> None:
        """Note which processes this one could not reach: the next agreement parts them."""
        return

    def begin(self, world: World) -> None:
        """Make ready for deaths. Collective; a second call does nothing.

        :raises HvdliteError: a death ends this job.
        """
        raise NotImplementedError

    def is_replacement(self) -> bool:
        """Tell whether this process is to come into a running job, and has not yet."""
        return False

    def wait_for_replacements(self) -> None:
        """Let the launcher start new ranks for the dead: this process lets them in."""
        return

    def come_in(self) -> None:
        """Come into the job that this replacement was started for; exit if the job has ended."""
        return

    def may_grow(self) -> bool:
        """Tell whether there is room for replacements: the same on all ranks."""
        return False

    def are_ready(self) -> bool:
        """Tell whether this process knows of replacements that are ready to come in."""
        return False

    def have_caused(self, error: BaseException) -> bool:
        """Tell whether a death may have caused the error."""
        return False

    def agree(self, vote: int) -> int:
        """Return the bits that all votes have; SOMETHING_FAILED after a death. Collective.

        :raises HvdliteError: some did not come in time, or this process is with the fewer.
        """
        return vote

    def go_on(self) -> None:
        """Go on with those that have agreed."""
        return

    def shrink(self) -> None:
        """Go on without the dead.

        :raises HvdliteError: too few are left, or ranks have died too often.
        """
        return
