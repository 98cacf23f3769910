"""Opens a group of ranks, without the other ranks of the job."""

from typing import List, Tuple

import numpy as np

from hvdlite.core import topology
from hvdlite.core.collectives import run, start_all
from hvdlite.core.native import RANK_LEFT, STALLED, HvdliteError, lib


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
    rank, first = topology.rank(), ranks[0]
    # 1 + a missing rank (0: no rank is missing); an index of _WHY; the number of the first rank
    lost, told = np.array([0, 0, number], np.int32), np.zeros(3, np.int32)
    if rank != first:
        here = start_all(lib.HVD_SEND, [f"{name}.{rank}"], [lost], [lost], [{"root": first}])
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
    others, error = ranks[1:], None
    calls = [
        start_all(lib.HVD_RECV, [f"{name}.{other}"], [told], [told], [{"root": other}])
        for other in others
    ]
    for step in range(2):
        for other, call in zip(others, calls):
            try:
                call.finish()
            except HvdliteError as failure:
                if not error:
                    late = 1 + (step and failure.kind == STALLED)
                    lost[:2] = other + 1, 0 if failure.kind == RANK_LEFT else late
                    error = failure
        names = [f"{name}.{other}.lost{step}" for other in others]
        calls = [  # start_all does not wait until the others receive the message
            start_all(lib.HVD_SEND, [each], [lost], [lost], [{"root": other}])
            for each, other in zip(names, others)
        ]
        if error:
            raise error
    return number


# why a rank is missing, and the kind of the error
_WHY = (
    ("has left the job", RANK_LEFT),
    ("is late", STALLED),
    ("has given up, because another rank was late", STALLED),
)


def _not_opened(why: str, ranks: List[int], kind: str, who: Tuple[int, ...]) -> HvdliteError:
    text = f"{why}: ranks {ranks} can't open a group of ranks"
    if kind == STALLED:
        text += ". To wait longer, set HVDLITE_STALL_SHUTDOWN_TIME_SECONDS"
    return HvdliteError(text, kind=kind, ranks=who)
