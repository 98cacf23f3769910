"""The table of ``hvdlite top``: one row for each rank."""

from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

from hvdlite.monitor import live, steps
from hvdlite.monitor.memory import Snapshot, title

# Seconds. Shorter waits are not shown: they may be false, because ranks are read one by one.
_SHORTEST_WAIT = 0.02
_BARS = "▁▂▃▄▅▆▇█"
_STEPS = 24  # the largest number of steps in a sparkline


class Row(NamedTuple):
    """The values that the table shows of one rank."""

    one: Snapshot
    late: bool  # True: other ranks wait mostly for this rank
    rates: live.Rates
    wait: Optional[live.Wait]
    times: List[float]  # times in seconds of the rank's last steps

    @property
    def rank(self) -> int:
        return self.one.rank


def build(
    ranks: Sequence[Snapshot], before: Dict[int, Snapshot], by: str = "rank", most: int = _STEPS
) -> List[Row]:
    """Return a row for each rank, with its last ``most`` step times, sorted by column ``by``."""
    last = live.straggler(ranks)
    found = []
    for one in ranks:
        wait = live.wait_of(one, ranks) if one.state == "runs" else None
        if wait and wait.seconds < _SHORTEST_WAIT:
            wait = None
        rates = live.rates(before.get(one.rank), one)
        found.append(Row(one, one.rank == last, rates, wait, _times(one)[-most:]))
    key = next(column.key for column in COLUMNS if column.name == by)
    return sorted(found, key=key)


def _times(one: Snapshot) -> List[float]:
    own = live.tensors_of(one)
    mark = steps.marks(own)
    begins = [tensor.submitted for tensor in own if tensor.name == mark]
    return [end - begin for begin, end in zip(begins, begins[1:])]


def sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, with a height proportional to the value.

    >>> sparkline([1, 4, 8])
    '▁▄█'
    """
    most = max(values, default=0.0)
    top = len(_BARS)
    return "".join(
        _BARS[min(max(int(v / most * top + 0.5) - 1, 0), top - 1)] for v in values if most
    )


def _step_times(row: Row) -> str:
    if not row.times:
        return ""
    return f"{sparkline(row.times)} {row.times[-1] * 1e3:.3g} ms"


def _waits_for(row: Row) -> str:
    if row.one.state != "runs":
        return row.one.state
    if not row.wait:
        return ""
    who = live.ranks_text(row.wait.ranks) if row.wait.ranks else "others"
    return f"{who}, {row.wait.seconds:.2f} s"


def _operation(row: Row) -> str:
    op = row.wait.op if row.wait else (row.one.ops[-1] if row.one.ops else None)
    return f"{op['phase']} {title(op)}" if op else ""


class Column(NamedTuple):
    """A column of the table. The table can be sorted by columns that have a key."""

    name: str
    text: Callable[[Row], str]
    key: Optional[Callable[[Row], Any]] = None
    number: bool = True
    from_width: int = 0  # the column is shown on terminals of at least this width


COLUMNS = (
    Column("rank", lambda row: f"{row.rank}{' *' * row.late}", lambda row: row.rank),
    Column("host", lambda row: row.one.head["host"], number=False),
    Column("pid", lambda row: str(row.one.head["pid"]), from_width=100),
    Column("steps/s", lambda row: f"{row.rates.steps:.1f}", lambda row: row.rates.steps),
    Column("step times", _step_times, lambda row: -max(row.times[-1:], default=0.0)),
    Column(
        "sent/s", lambda row: live.size_text(row.rates.bytes), lambda row: -row.rates.bytes,
        from_width=100,
    ),
    Column("waiting", lambda row: f"{row.rates.waiting:.0%}", lambda row: row.rates.waiting),
    Column("waits for", _waits_for, number=False),
    Column("operation", _operation, number=False),
)  # fmt: skip
