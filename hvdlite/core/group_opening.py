"""Opens a group of ranks, without the other ranks of the job."""

from typing import List, Tuple

import numpy as np

from hvdlite.core import topology
from hvdlite.core.collectives import run, start_all
from hvdlite.core.native import RANK_LEFT, STALLED, HvdliteError, lib


def open_among(ranks: List[int], number: int) -> int:
    """Open a group in the C library with the ranks in this order; return its number.

    Only these ranks make the call. If one of them dies or is stopped meanwhile, the job ends: with
    an error, or, over MPI, by an abort.

    :param number: the same on all these ranks; their first rank must not use it twice.
    :raises hvdlite.HvdliteError: one of the ranks has left the job, or has not made the call within
        the limit for stalls.
    """
    topology.world().check_groups()
    _meet(ranks, f"group.{ranks[0]}.{number}")
    return topology.world().open_among(ranks, number)


def _meet(ranks: List[int], name: str) -> None:
    """Wait until all these ranks make this call; raise if one has left the job or is too late.

    Opening a group would wait forever for a rank that has left, but a message to it fails. So each
    rank sends a message to the first rank, which tells the others which rank does not come.
    """
    rank, first = topology.rank(), ranks[0]
    # the number, plus 1, of a rank that does not come; 1: because it has left the job
    lost, told = np.zeros(2, np.int32), np.zeros(2, np.int32)
    if rank != first:
        here = start_all(lib.HVD_SEND, [f"{name}.{rank}"], [lost], [lost], [{"root": first}])
        try:
            run(lib.HVD_RECV, f"{name}.{rank}.lost", told, told, root=first)
        except HvdliteError as failure:
            if failure.kind == STALLED and here.done():  # the first rank is waiting, too
                raise _not_opened("another rank is late", ranks, STALLED, ()) from failure
            raise
        if told[0]:
            who = int(told[0]) - 1
            what, kind = ("has left the job", RANK_LEFT) if told[1] else ("is late", STALLED)
            raise _not_opened(f"rank {who} {what}", ranks, kind, (who,))
        return
    others, error = ranks[1:], None
    calls = [
        start_all(lib.HVD_RECV, [f"{name}.{other}"], [told], [told], [{"root": other}])
        for other in others
    ]
    for other, call in zip(others, calls):
        try:
            call.finish()
        except HvdliteError as failure:
            if not error:
                lost[:] = other + 1, failure.kind == RANK_LEFT
                error = failure
    for other in others:  # start_all does not wait until the others receive the message
        start_all(lib.HVD_SEND, [f"{name}.{other}.lost"], [lost], [lost], [{"root": other}])
    if error:
        raise error


def _not_opened(why: str, ranks: List[int], kind: str, who: Tuple[int, ...]) -> HvdliteError:
    text = f"{why}: ranks {ranks} can't open a group of ranks"
    return HvdliteError(text, kind=kind, ranks=who)
