"""Finds the rank that failed first."""

import signal
from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from hvdlite.core.agent_protocol import SILENT, STALLED, TOO_LATE
from hvdlite.launch.channel import BadFrame

# seconds that a rank's end and the message about it may take on a busy machine
SLACK = 4.0

# MPI ends a rank with one of these exit codes (error classes "unknown", "other", "internal") some
# milliseconds after another rank died. The launcher may first hear of either rank's end.
LOST_PEER = (14, 15, 16, 17)
SIMULTANEOUS = 0.5  # seconds within which agents that die count as killed together


class Ending(NamedTuple):
    """How a rank ended."""

    rank: int
    label: str
    host: str
    code: int  # negative: the signal that killed the rank
    ended: bool  # True: the launcher or the backend ended the rank; False: the rank ended itself
    after: float  # seconds since the ranks were started
    goodbye: bool = True  # True: the rank had left the job when it ended
    silent: bool = False  # True: its agent was killed before the agent could report
    # if the host lost power or network: seconds for which the host had not answered
    silence: float = 0
    signal: int = 0  # a signal to the rank's agent, not from hvdliterun, that ended both; 0: none

    @property
    def status(self) -> int:
        """The exit code as a shell shows it; 1 in place of 0 if the rank had not left the job."""
        return (self.code if self.code >= 0 else 128 - self.code) or int(not self.goodbye)

    @property
    def failed(self) -> bool:
        return self.status != 0


class Signs:
    """What ranks have reported about failures, by rank; times are seconds since the start.

    :param exit_timeout: seconds for which a failed rank waits for the other ranks.
    """

    def __init__(self, exit_timeout: float = 2.0) -> None:
        # an exception that the script does not catch ends its rank within so many seconds
        self.patience = exit_timeout + SLACK
        # when a rank raised an uncaught exception or called sys.exit()
        self.raised: Dict[int, float] = {}
        # for each rank whose collective failed: when it failed, and the ranks that caused this
        self.blamed: Dict[int, Tuple[float, List[int]]] = {}
        # for each rank that gave up late ranks: when; whether they were STALLED or SILENT; their
        # number; the first of them
        self.waited_for: Dict[int, Tuple[float, int, int, List[int]]] = {}

    def add(self, rank: int, sign: bytes, after: float) -> None:
        """Record a report: empty (the rank has raised), or reason, number and list of blamed ranks.

        :raises BadFrame: the report has another form.
        """
        if not sign:
            self.raised.setdefault(rank, after)
            return
        try:
            kind, count, *ranks = map(int, sign.split())
        except ValueError as error:
            raise BadFrame("a report of a failure with wrong fields") from error
        if after - self.raised.get(rank, float("-inf")) < self.patience:
            return  # a later report is only a consequence of the exception
        if kind in (STALLED, SILENT):
            self.waited_for[rank] = after, kind, count, ranks
        if kind != STALLED:
            self.blamed[rank] = after, ranks


def culprit(endings: Sequence[Ending], signs: Signs) -> Optional[Ending]:
    """Find the rank that failed first.

    A rank that raised reports the exception immediately, but may end last, because it waits for the
    others. A killed rank reports nothing before its end. A rank that blames no other rank comes
    first, then a rank that blames a rank which did not end by itself. If the backend ended the
    blamed rank earlier, no rank is the culprit: the backend's output gives the cause.
    """
    failed = [e for e in endings if e.failed]
    killed = [e.after for e in endings if e.silent]
    # all agents were killed together, as mpirun kills them at its own end
    together = len(killed) == len(endings) > 1 and max(killed) - min(killed) < SIMULTANEOUS
    if not failed or together:
        return None
    # If a rank raised before this time and did not end, its script has caught the exception.
    since = min(e.after for e in failed) - signs.patience
    never, not_yet = float("-inf"), float("inf")
    by_themselves = {e.rank for e in failed if not e.ended}
    # A signal that hvdliterun did not send is the cause, even if the agent reports it later.
    ended = {e.rank: never if e.signal else e.after for e in failed if e.ended}

    def first_sign(e: Ending) -> float:
        raised = signs.raised.get(e.rank, never)
        own_end = not_yet if e.ended else e.after + signs.patience * (e.code in LOST_PEER)
        when, whom = signs.blamed.get(e.rank, (never, []))
        if when >= since and any(ended.get(rank, not_yet) <= e.after for rank in whom):
            return not_yet
        return raised if raised >= since else own_end

    def order(e: Ending) -> Tuple[bool, bool, float]:
        when, whom = signs.blamed.get(e.rank, (never, []))
        return when >= since, not by_themselves.isdisjoint(whom), first_sign(e)

    return min((e for e in failed if first_sign(e) < not_yet), key=order, default=None)


def lost(endings: Sequence[Ending]) -> Optional[Ending]:
    """Return the first rank on a lost host, because a lost host causes all other failures."""
    return next((e for e in endings if e.silence), None)


def signaled(endings: Sequence[Ending]) -> Optional[Ending]:
    """Return the first rank whose agent got a signal; None if all agents did, at the job's end."""
    if len(endings) > 1 and all(e.signal or e.silent for e in endings):
        return None
    with_signal = [e for e in endings if e.signal and e.failed]
    return min(with_signal, key=lambda e: e.after, default=None)


def last(endings: Sequence[Ending]) -> Optional[Ending]:
    """For an elastic job that no rank continued: return the last rank that failed.

    A rank that was killed, or ended because of another rank, counts only if no other rank failed.
    """

    def order(e: Ending) -> Tuple[bool, bool, float]:
        return not e.ended and e.code not in (*LOST_PEER, TOO_LATE), e.code > 0, e.after

    return max((e for e in endings if e.failed), key=order, default=None)


def who_stood_still(
    first: Ending, endings: Sequence[Ending], signs: Signs
) -> Tuple[List[Ending], int]:
    """Return the late ranks for which ``first`` waited, and how many more its error did not name.

    A late rank counts if it ended after ``first`` got the error, even if it ended before ``first``
    did: a backend may end the late ranks when ``first`` ends the job, and on a busy machine the
    launcher may hear of their ends first. The backend may even have killed their agents. JAX aborts
    the late ranks when the process of rank 0 has ended.
    """
    since, kind, count, named = signs.waited_for.get(first.rank, (0.0, 0, 0, []))
    if kind == SILENT and signs.raised.get(first.rank, since) > since + signs.patience:
        return [], 0  # the script caught the error about late ranks

    def stood_still(e: Ending) -> bool:
        return e.ended or (kind == STALLED and (e.silent or e.code == -signal.SIGABRT))

    late = [e for e in endings if e.rank in named and e.after >= since]
    return list(filter(stood_still, late)), count - len(named)


def exit_code(first: Ending) -> int:
    """Return the job's exit code; 1 if the launcher or the backend killed the first failed rank."""
    if first.signal:
        return 128 + first.signal
    return 1 if first.ended and first.code < 0 else first.status
