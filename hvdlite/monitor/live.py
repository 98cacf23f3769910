"""Combines the recorders of several ranks into the present state of their job."""

from typing import Dict, List, NamedTuple, Optional, Sequence

from hvdlite.monitor import steps
from hvdlite.monitor.memory import ALONE, MESSAGES, Op, Snapshot
from hvdlite.monitor.traces import Note, Tensor

_MOST_RANKS = 1 << 20  # limits loops, because a damaged recorder may contain any size


class Wait(NamedTuple):
    """The current wait of a rank for other ranks."""

    seconds: float
    ranks: List[int]  # the ranks for which the rank waits; empty: unknown
    op: Optional[Op]  # the operation whose ranks are awaited; None: a transfer between operations


def all_ranks(op: Op) -> bool:
    """Return True if all ranks of the job take part in the operation."""
    return op["group"] == 0 and op["kind"] not in MESSAGES


def pending(snapshot: Snapshot, phase: str = "waits") -> List[Op]:
    return [op for op in snapshot.ops if op["phase"] == phase]


def wait_of(one: Snapshot, ranks: Sequence[Snapshot]) -> Optional[Wait]:
    """Return the wait of rank ``one``, or None if the rank does not wait for other ranks.

    :param ranks: the snapshots of all ranks that could be read.
    """
    for op in pending(one, "moves"):
        for_whom = one.head["waits_for"] - 1
        if for_whom >= 0:
            since = one.head["waits_since"] / 1e9
            return Wait(max(one.now - since, 0), [for_whom], op)
    for op in pending(one):
        return Wait(one.now - op["submitted"], missing(op, one, ranks), op)
    return None


def missing(op: Op, one: Snapshot, ranks: Sequence[Snapshot]) -> List[int]:
    """Return the ranks that have not submitted an operation for which rank ``one`` waits.

    These are the ranks in whose snapshots the operation is not pending.
    """
    if not all_ranks(op):
        return []
    have = {one.rank}
    for other in ranks:
        if any(all_ranks(x) and x["name"] == op["name"] for x in pending(other)):
            have.add(other.rank)
    size = min(one.head["size"], _MOST_RANKS)
    return [rank for rank in range(size) if rank not in have]


def tensors_of(one: Snapshot) -> List[Tensor]:
    """Return a rank's operations that all ranks have submitted, with times of rank 0's clock."""
    clock = one.head["clock_offset"]
    return [
        Tensor(
            one.rank,
            *(op[name] for name in ("name", "kind", "bytes", "batch")),
            *(op[name] + clock for name in ("submitted", "agreed", "started", "ended")),
        )._replace(waited=bool(op.get("waited")))
        for op in one.ops
        if op["batch"] and all_ranks(op)
    ]


def notes_of(one: Snapshot) -> List[Note]:
    """Return the local work of rank ``one``, such as updates, with times of rank 0's clock."""
    clock = one.head["clock_offset"]
    return [
        Note(one.rank, op["name"], op["started"] + clock, op["ended"] + clock)
        for op in one.ops
        if op["kind"] == ALONE
    ]


def lateness(ranks: Sequence[Snapshot]) -> Dict[int, float]:
    """Return for each rank the seconds in which all other ranks waited for this rank only."""
    tensors = [tensor for one in ranks for tensor in tensors_of(one)]
    return steps.lateness(tensors, [one.rank for one in ranks])


class Rates(NamedTuple):
    """The rates of one rank between two readings of its recorder."""

    steps: float  # steps per second
    bytes: float  # bytes per second sent to other ranks
    waiting: float  # share of the time in which the rank waited for other ranks, 0 to 1


def rates(before: Optional[Snapshot], after: Snapshot) -> Rates:
    """Return the rates since ``before``, or since the job began if ``before`` is None."""
    old = before.head if before else dict.fromkeys(after.head, 0)
    seconds = max(after.now - (before.now if before else after.head["began"]), 1e-9)

    def change(*names: str) -> float:
        return sum(after.head[name] - old[name] for name in names)

    waited = (_waited(after) - (_waited(before) if before else 0)) / seconds
    sent = change("bytes_sent_network", "bytes_sent_window")
    return Rates(change("steps") / seconds, sent / seconds, min(max(waited, 0.0), 1.0))


def _waited(one: Snapshot) -> float:
    """Return the seconds of all waits, including a wait that has not ended."""
    since = one.head["waits_since"] / 1e9
    return one.head["waited"] / 1e9 + (max(one.now - since, 0) if since else 0)


def straggler(ranks: Sequence[Snapshot]) -> Optional[int]:
    """Return the rank for which other ranks waited most, or None if no rank is much later.

    The rank's lateness must exceed half of all ranks' lateness, and 1/20 of the recorded time.
    """
    late = lateness(ranks)
    rank = max(late, key=late.__getitem__, default=None)
    if rank is None:
        return None
    moments = [op["submitted"] for one in ranks for op in one.ops if one.rank == rank]
    enough = (max(moments) - min(moments)) / 20 if moments else 0
    return rank if late[rank] > max(sum(late.values()) / 2, enough) else None


def size_text(count: float) -> str:
    """Return a number of bytes as text with a unit.

    >>> size_text(4_200_000)
    '4.2 MB'
    """
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"


def ranks_text(ranks: Sequence[int]) -> str:
    """Return a list of ranks as text, in rising order.

    >>> ranks_text([5, 0, 1, 2])
    'ranks 0-2, 5'
    """
    spans: List[List[int]] = []
    for rank in sorted(ranks):
        if spans and rank == spans[-1][1] + 1:
            spans[-1][1] = rank
        else:
            spans.append([rank, rank])
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in spans]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(texts)
