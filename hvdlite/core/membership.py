"""Membership: which processes make up a job."""

import socket
from typing import Dict, List, NamedTuple, Optional, Set

from hvdlite.core.world import World

# The bits of a rank's vote at the end of its training function. The ranks' common verdict has the
# bits that are set in all votes.
SOMETHING_FAILED, ALL_IS_DONE, LET_REPLACEMENTS_IN = 0, 1, 2
# Why a rank has left its job. Errors of ranks that wait for this rank contain this text.
GOES_ON = "it goes on without the dead"


class Meeting(NamedTuple):
    """The processes of the next job, which are already connected to the next job's rank 0.

    :param numbers: the number of each rank. A process keeps its number in all jobs.
    :param epoch: the number of meetings so far.
    """

    rank: int
    numbers: List[int]
    epoch: int
    key: bytes
    connections: Dict[int, socket.socket]  # by rank: rank 0 is connected to all, others to rank 0
    patience: float  # seconds in which a rank must connect to all other ranks


class Membership:
    """The processes of a job.

    The defaults here are for a job with fixed processes, which ends when any of them dies.
    """

    def is_elastic(self) -> bool:
        """Return True if the processes go on after the death of one of them."""
        return False

    def next_meeting(self) -> Optional[Meeting]:
        """Let the living ranks meet, unless they have met; return their meeting. Collective.

        Return None if no rank has died.

        :raises HvdliteError: a rank did not arrive in time, or this rank is in the smaller part of
            a split network.
        """
        return None

    def first_numbers(self) -> Optional[List[int]]:
        """Return the numbers of the job's first processes; None: the numbers are the ranks."""
        return None

    def entered(self, world: World) -> None:
        """Record the world of the job that has begun. Collective."""

    def note_unreached(self, numbers: Set[int]) -> None:
        """Record the processes that this process could not reach, for the next :meth:`agree`."""

    def close_in_child(self) -> None:
        """Close a forked child's descriptors, which would hide from peers that the parent ended."""

    def begin(self, world: World) -> None:
        """Prepare for deaths. Collective; a second call does nothing.

        :raises HvdliteError: this job can't go on after a death.
        """
        raise NotImplementedError

    def is_replacement(self) -> bool:
        """Return True if this process is a replacement that has not joined yet."""
        return False

    def wait_for_replacements(self) -> None:
        """Tell the launcher this process's port. Then the launcher may start replacements."""

    def join(self) -> None:
        """As a replacement: join the job; exit if the job has ended."""

    def may_grow(self) -> bool:
        """Return True if replacements may join. The result is the same on all ranks."""
        return False

    def are_ready(self) -> bool:
        """Return True if this process knows replacements that are ready to join."""
        return False

    def have_caused(self, error: BaseException) -> bool:
        """Return True if a death may have caused the error."""
        return False

    def give_up(self, error: Optional[BaseException]) -> None:
        """At this rank's end: tell the launcher not to wait for late ranks.

        :param error: the error that ends this rank; None: a normal end.
        """

    def agree(self, vote: int) -> int:
        """Return the bits that are set in all votes; SOMETHING_FAILED after a death. Collective.

        :raises HvdliteError: as for :meth:`next_meeting`.
        """
        return vote

    def accept_meeting(self) -> None:
        """Continue training with the ranks that have agreed."""

    def drop_dead(self) -> None:
        """Continue training without the dead ranks.

        :raises HvdliteError: too few ranks are left, or ranks have died too often.
        """
