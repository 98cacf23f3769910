"""Finds how the training steps in a trace spend their time."""

import bisect
import itertools
import statistics
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from hvdlite.monitor.traces import Note, Tensor

Span = Tuple[float, float]


class Step(NamedTuple):
    """How one rank spent a step. While some tensors move and others wait, the time is `moving`."""

    begin: float
    end: float
    moving: float  # seconds in which data of tensors moves
    queued: float  # seconds in which tensors that all ranks have submitted wait for other transfers
    waiting: float  # seconds in which tensors wait until other ranks submit them
    hidden: float  # seconds of `moving` in which the rank computes, before its last submission
    exposed: float  # seconds of `moving` and `queued` in which the rank does not compute
    lost: float  # seconds of `waiting` in which the rank does not compute
    noted: Dict[str, float]  # seconds of local work by name, if the framework reports them

    @property
    def seconds(self) -> float:
        return self.end - self.begin

    @property
    def alone(self) -> float:
        """Seconds without a tensor in progress: the rank computes, or loads data."""
        return max(self.seconds - self.moving - self.queued - self.waiting, 0.0)


def marks(tensors: Sequence[Tensor]) -> Optional[str]:
    """Return the most frequent tensor name: its submissions begin steps. None: no name repeats."""
    counts: Dict[str, int] = {}
    for tensor in tensors:
        counts[tensor.name] = counts.get(tensor.name, 0) + 1
    most = max(counts.values(), default=0)
    return next((name for name, count in counts.items() if count == most > 1), None)


def steps_of(tensors: Sequence[Tensor], mark: str, notes: Sequence[Note] = ()) -> List[Step]:
    """Return one rank's complete steps; a step lasts from a submission of ``mark`` to the next.

    :param tensors: the rank's tensors in order of submission; ``notes``: the rank's notes.
    """
    begins = [tensor.submitted for tensor in tensors if tensor.name == mark]
    found, alone = [], list(notes)
    moments = [tensor.submitted for tensor in tensors]
    # at: the number of tensors submitted before `end`; open_: those of them that end after `end`
    at, open_ = 0, list(tensors[:0])
    for begin, end in zip(begins, begins[1:]):
        before, at = at, bisect.bisect_left(moments, end, at)
        own = [t for t in (*open_, *tensors[before:at]) if t.ended > begin]
        open_ = [t for t in own if t.ended > end]
        noted = [n for n in alone if n.begin < end and n.end > begin]
        alone = [n for n in alone if n.end > end]
        found.append(_step(begin, end, own, noted))
    return found


def _step(begin: float, end: float, own: Sequence[Tensor], notes: Sequence[Note]) -> Step:
    within = [(begin, end)]
    moves = _merged((t.started, t.ended) for t in own)
    agreed = _merged((t.agreed, t.ended) for t in own)
    submitted = _merged((t.submitted, t.ended) for t in own)
    last = max((t.submitted for t in own if t.submitted >= begin), default=begin)
    calls = ((max(t.submitted, begin), min(t.ended, end)) for t in own if t.waited)
    waits = ((max(a, begin), b) for a, b in _waits(own, notes) if b > begin)
    idle = _merged([*calls, *waits, (last, end)])
    moving, queued = _common(moves, within), _common(agreed, within)
    exposed = _common(agreed, idle)
    noted: Dict[str, float] = {}
    for what, spans in itertools.groupby(sorted(notes, key=lambda n: n.what), lambda n: n.what):
        noted[what] = _common(_merged((n.begin, n.end) for n in spans), within)
    return Step(
        begin, end, moving, queued - moving, _common(submitted, within) - queued,
        moving - _common(moves, idle), exposed, _common(submitted, idle) - exposed, noted,
    )  # fmt: skip


def _waits(own: Sequence[Tensor], notes: Sequence[Note]) -> Iterator[Span]:
    """Yield the spans in which the rank waited.

    When such a span ends, no tensor is pending, and the rank soon continues with an update or with
    another tensor, such as a mean loss.
    """
    went_on = [(n.begin, n.begin) for n in notes if n.what == "update"]
    ended, last = float("-inf"), float("inf")
    for moment, end in sorted([*((t.submitted, t.ended) for t in own), *went_on]):
        if last < ended <= moment and moment - ended < (ended - last) / 10:
            yield last, ended
        if end > moment:
            last = moment
        ended = max(ended, end)


def _merged(spans: Iterable[Span]) -> List[Span]:
    found: List[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found


def _common(ones: Sequence[Span], others: Sequence[Span]) -> float:
    """Return the length in seconds of the intersection of two lists of merged spans."""
    total, i, k = 0.0, 0, 0
    while i < len(ones) and k < len(others):
        begin, end = max(ones[i][0], others[k][0]), min(ones[i][1], others[k][1])
        total += max(end - begin, 0.0)
        if ones[i][1] < others[k][1]:
            i += 1
        else:
            k += 1
    return total


class Slow(NamedTuple):
    """A tensor's mean times over all ranks and steps, in seconds."""

    name: str
    bytes: int
    waits: float
    queued: float
    moves: float

    @property
    def seconds(self) -> float:
        return self.waits + self.queued + self.moves


def slowest(tensors: Sequence[Tensor]) -> List[Slow]:
    """Return the 15 tensors with the longest mean time from submission to end, longest first."""
    by_name: Dict[str, List[Tensor]] = {}
    for tensor in tensors:
        by_name.setdefault(tensor.name, []).append(tensor)
    rows = [
        Slow(
            name,
            own[-1].bytes,
            statistics.fmean(t.agreed - t.submitted for t in own),
            statistics.fmean(t.started - t.agreed for t in own),
            statistics.fmean(t.ended - t.started for t in own),
        )
        for name, own in by_name.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)[:15]


def lateness(tensors: Sequence[Tensor], ranks: Iterable[int] = ()) -> Dict[int, float]:
    """Return for each rank the seconds in which all other ranks waited for this rank only.

    For each tensor that all ranks have submitted, these are the seconds between the last submission
    and the submission before.

    :param ranks: all ranks; needed if a rank may have no tensor.
    """
    moments: Dict[tuple, Dict[int, float]] = {}
    late = dict.fromkeys(ranks, 0.0)
    for tensor in tensors:
        late.setdefault(tensor.rank, 0.0)
        if tensor.batch:
            moments.setdefault(tensor.key, {})[tensor.rank] = tensor.submitted
    for of_ranks in moments.values():
        if len(of_ranks) == len(late) > 1:
            *_, previous, last = sorted(of_ranks, key=of_ranks.__getitem__)
            late[last] += of_ranks[last] - of_ranks[previous]
    return late
