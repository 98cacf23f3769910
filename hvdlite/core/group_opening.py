"""Opens a group of ranks, without the other ranks of the job."""

from typing import Any, List, Optional, Tuple

import numpy as np

from hvdlite.core import topology
from hvdlite.core.collectives import run, start_all
from hvdlite.core.native import RANK_LEFT, STALLED, TRANSPORT, HvdliteError, lib


def open_among(ranks: List[int], number: int, name: str = "") -> int:
    """Open a group in the C library with the ranks in this order; return its number.

    Only these ranks make the call. If one of them dies or is stopped meanwhile, the job ends: with
    an error, or, over MPI, by an abort.

    :param number: the first rank's number counts, and the first rank must not use it twice.
    :param name: the ranks match their calls by this name; by default by an equal ``number``.
    :raises hvdlite.HvdliteError: one of the ranks has left the job, or has not made the call within
        the limit for stalls.
    """
    topology.world().check_groups()
    number = _meet(ranks, name or f"group.{ranks[0]}.{number}", number)
    return topology.world().open_among(ranks, number)


def _meet(ranks: List[int], name: str, number: int) -> int:
    """Wait until all these ranks make this call; return the first rank's number.

    Raise if one of the ranks has left or is too late.

    Opening a group waits forever for a rank that has left, but a message to this rank fails. So
    each rank sends a message to the first rank, and the first rank tells the others which rank is
    missing. A rank that came long before the last rank may have given up. Therefore the first rank
    sends a second message, when all ranks have received the first one.
    """
    if topology.rank() == ranks[0]:
        _await_others(ranks[1:], name, number)
        return number
    return _follow_first(ranks, name)


def _follow_first(ranks: List[int], name: str) -> int:
    """Send the first rank a message; raise what it reports, or return its number."""
    rank, first = topology.rank(), ranks[0]
    here = _start(lib.HVD_SEND, f"{name}.{rank}", np.zeros(3, np.int32), first)
    told = np.zeros(3, np.int32)
    for step in range(2):
        try:
            run(lib.HVD_RECV, f"{name}.{rank}.lost{step}", told, told, root=first)
        except HvdliteError as failure:
            # the first rank has received this rank's message, so it waits for another rank
            if failure.kind == STALLED and here.done():
                raise _not_opened("another rank is late", ranks, STALLED, ()) from failure
            raise
        if told[0]:
            who, (what, kind) = int(told[0]) - 1, _WHY[told[1]]
            raise _not_opened(f"rank {who} {what}", ranks, kind, (who,))
    return int(told[2])


def _await_others(others: List[int], name: str, number: int) -> None:
    """On the first rank: wait for all others; tell them which rank is missing, and raise."""
    # 1 + a missing rank (0: no rank is missing); an index of _WHY; the number of the first rank
    lost, told = np.array([0, 0, number], np.int32), np.zeros(3, np.int32)
    calls = [_start(lib.HVD_RECV, f"{name}.{other}", told, other) for other in others]
    for step in range(2):
        failed = _first_failure(others, calls)
        if failed:
            whys = {RANK_LEFT: 0, STALLED: 1 + step}
            lost[:2] = failed[0] + 1, whys.get(failed[1].kind or "", 3)
        # _start does not wait until the others receive the message
        calls = [_start(lib.HVD_SEND, f"{name}.{each}.lost{step}", lost, each) for each in others]
        if failed:
            raise failed[1]


def _first_failure(others: List[int], calls: List) -> Optional[Tuple[int, HvdliteError]]:
    """Wait for all calls; return the rank and the error of the first call that failed."""
    failed = []
    for other, call in zip(others, calls):
        try:
            call.finish()
        except HvdliteError as failure:
            failed.append((other, failure))
    return failed[0] if failed else None


def _start(kind: int, name: str, numbers: np.ndarray, other: int) -> Any:
    return start_all(kind, [name], [numbers], [numbers], [{"root": other}])


# why a rank is missing, and the kind of the error
_WHY = (
    ("has left the job", RANK_LEFT),
    ("is late", STALLED),
    ("has given up, because another rank was late", STALLED),
    ("and the first rank can't exchange messages: see the first rank's error", TRANSPORT),
)


def _not_opened(why: str, ranks: List[int], kind: str, who: Tuple[int, ...]) -> HvdliteError:
    text = f"{why}: ranks {ranks} can't open a group of ranks"
    if kind == STALLED:
        text += ". To wait longer, set HVDLITE_STALL_SHUTDOWN_TIME_SECONDS"
    return HvdliteError(text, kind=kind, ranks=who)
