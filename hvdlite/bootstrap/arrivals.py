"""Tells a rank that waits in init() which ranks have called init()."""

import socket
import time
from typing import List, Set

from hvdlite.core.limits import INIT
from hvdlite.core.log import logger
from hvdlite.core.native import RANK_LEFT, STALLED, HvdliteError, RankFailedError


def ended(rank: int) -> RankFailedError:
    """Return the error about a rank that called init() and died before the job began."""
    text = f"init(): rank {rank} ended while the job was starting: its own output says why"
    return RankFailedError(text, ranks=(rank,))


def kept_apart(own: int, other: int, waited: float) -> RankFailedError:
    """Return the error about a rank that rank 0 can reach but this rank can't."""
    text = (
        f"init(): rank {own} could not connect to rank {other} within {waited:.0f} s, but other "
        "ranks could: a firewall or a broken network keeps the two ranks apart"
    )
    return RankFailedError(text, ranks=(other,))


def ended_without(rank: int) -> HvdliteError:
    """Return the error about a rank that will never call init()."""
    text = f"init(): rank {rank}'s script has ended without calling init()"
    return HvdliteError(text, kind=RANK_LEFT, ranks=(rank,))


class Arrivals:
    """The ranks that this rank knows to be in init().

    :param warn: seconds after which :meth:`poll` logs, once, which ranks are missing.
    :param limit: seconds after which :meth:`poll` raises, at least ``warn``; 0: no limit.
    """

    def __init__(self, rank: int, size: int, warn: float, limit: float):
        self.arrived: Set[int] = {rank}
        self._rank, self._size = rank, size
        self.began = time.monotonic()
        self._warns = self.began + warn
        self._ends = self.began + max(limit, warn) if limit else float("inf")
        self.over = False  # True: at the end of the time limit ranks had not arrived

    def poll(self) -> None:
        """Warn once about the missing ranks.

        :raises HvdliteError: ranks are still missing after the limit.
        """
        now = time.monotonic()
        waited = now - self.began
        if now >= self._ends:
            self.over = True
            text = f"{self._text(waited)}. To wait longer, set {INIT}"
            raise HvdliteError(text, kind=STALLED, ranks=tuple(self._missing()[:8]))
        if now >= self._warns:
            self._warns = float("inf")
            # one warning is enough: the lowest rank that is known to be in init() warns
            if self._rank == min(self.arrived):
                logger.warning("%s", self._text(waited))

    def _missing(self) -> List[int]:
        return sorted(set(range(self._size)) - self.arrived)

    def _text(self, waited: float) -> str:
        missing = self._missing()
        more = f" and {len(missing) - 8} more" if missing[8:] else ""
        ranks = ", ".join(map(str, missing[:8])) + more
        who = f"rank{'s' if missing[1:] else ''} {ranks}" if missing else "the others"
        return (
            f"rank {self._rank} on host {socket.gethostname()} has waited {waited:.0f} s "
            f"in init() for {who}: a rank has not called init() yet, or a firewall drops packets "
            "between hosts"
        )
