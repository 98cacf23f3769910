"""Explains a job's lost time, from the steps of all ranks."""

import statistics
import textwrap
from typing import Dict, Iterable, List, NamedTuple, Optional, Sequence

from hvdlite.monitor import live, steps
from hvdlite.monitor.traces import Note, Tensor

# Smaller losses, as shares of a step, are not reported: other jobs on a host can cause them.
LEAST = 0.10
# Smaller waits, as shares of a step, are not reported: on a host without a free core, ranks lose
# 8 to 13 % of a step by waiting for each other.
_UNEVEN = 0.15
_ENOUGH = 3  # number of steps needed to call a rank slow; in fewer steps one delay decides
# A rank is slow if its work takes this many times as long as that of other ranks. Chosen, like
# _MANY, not measured.
_SLOWER = 1.1
SMALL_BYTES = 16_000  # a tensor of fewer bytes is small: negotiating it costs more than moving it
_MANY = 32  # from this number on, a step's small tensors are reported, if most tensors are small
_WIDTH = 80  # characters in a line of the text


class RankSteps(NamedTuple):
    """The complete steps of one rank, and the mean number and bytes of tensors in a step."""

    rank: int
    host: str  # "": unknown
    steps: Sequence[steps.Step]
    late: float = 0.0  # seconds in which only this rank was late, and all others waited for it
    tensors: float = 0.0  # number of tensors in a step
    small: float = 0.0  # number of small tensors in a step
    bytes: float = 0.0  # bytes of all tensors in a step

    def share(self, part: str) -> float:
        """Return a part's share of the steps' time; a field of Step, or a key of Step.noted."""
        spent = sum(
            getattr(one, part) if part in one._fields else one.noted.get(part, 0.0)
            for one in self.steps
        )
        return spent / max(sum(one.seconds for one in self.steps), 1e-9)

    @property
    def seconds(self) -> float:
        return statistics.median(one.seconds for one in self.steps) if self.steps else 0.0

    @property
    def busy(self) -> float:
        """The median time of a step without ``lost`` and ``exposed`` time, in seconds."""
        return statistics.median(one.seconds - one.lost - one.exposed for one in self.steps)

    @property
    def name(self) -> str:
        return f"rank {self.rank}" + (f" on {self.host}" if self.host else "")


class Finding(NamedTuple):
    """One cause of lost time."""

    cause: str  # "slow rank", "uneven ranks", "small tensors", "network", "exposed", ...
    share: float  # the largest share of a step that could be saved without this cause
    what: str
    advice: str


def rank_steps(
    tensors: Sequence[Tensor], notes: Sequence[Note], hosts: Optional[Dict[int, str]] = None
) -> List[RankSteps]:
    """Return the RankSteps of each rank that has complete steps. All times must be of one clock."""
    by_rank: Dict[int, List[Tensor]] = {}
    for tensor in sorted(tensors, key=lambda each: each.submitted):
        by_rank.setdefault(tensor.rank, []).append(tensor)
    mark = steps.marks(by_rank[min(by_rank)]) if by_rank else None
    late = steps.lateness(tensors)
    found = []
    for rank, own in sorted(by_rank.items()):
        whole = steps.steps_of(own, mark, [n for n in notes if n.rank == rank]) if mark else []
        if len(whole) > 2:
            del whole[0]  # the first step is longer, because it makes buffers and plans
        if whole:
            inside = [t for t in own if whole[0].begin <= t.submitted < whole[-1].end]
            small = sum(t.bytes < SMALL_BYTES for t in inside)
            counts = (len(inside), small, sum(t.bytes for t in inside))
            each = (count / len(whole) for count in counts)
            found.append(RankSteps(rank, (hosts or {}).get(rank, ""), whole, late[rank], *each))
    return found


def findings(ranks: Sequence[RankSteps], awaited: Optional[Dict[int, int]] = None) -> List[Finding]:
    """Return the causes of a step's lost time, the worst first.

    :param awaited: for each rank, in how many readings a transfer waited for the rank's data.
    """
    if not ranks:
        return []
    found = [*_waiting(ranks), *_moving(ranks, awaited or {}), *_alone(ranks)]
    return sorted((each for each in found if each.share >= LEAST), key=lambda each: -each.share)


def _median(ranks: Iterable[RankSteps], part: str) -> float:
    return statistics.median(each.share(part) for each in ranks)


def _late(ranks: Sequence[RankSteps]) -> Optional[RankSteps]:
    """Return the rank that has more than half of all ranks' ``late`` seconds, or None."""
    worst = max(ranks, key=lambda each: each.late)
    total = sum(each.late for each in ranks)
    return worst if len(ranks) > 1 and worst.late > total / 2 else None


def _waiting(ranks: Sequence[RankSteps]) -> List[Finding]:
    if max(len(each.steps) for each in ranks) < _ENOUGH:
        return []
    worst = _late(ranks)
    others = [each for each in ranks if each is not worst]
    lost = statistics.fmean(each.share("lost") for each in others)
    # A slow rank hardly waits itself; two ranks that are late in turn also wait for each other.
    if worst and worst.share("lost") <= lost / 2:
        reads, theirs = worst.share("input"), _median(others, "input")
        if reads - theirs > lost / 2:
            what = f"waits for input during {reads:.0%} of a step, the others {theirs:.0%}."
            advice = "Check its disk, its data-loading workers and the size of its data."
            return [Finding("slow rank", lost, f"{worst.name} {what}", advice)]
        times = worst.busy / max(statistics.median(each.busy for each in others), 1e-9)
        if times >= _SLOWER:
            what = f"works {times:.1f}x as long per step as the other ranks, which wait for it."
            advice = "Check its host (slow cores, other jobs?), and the size of its batches."
            return [Finding("slow rank", lost, f"{worst.name} {what}", advice)]
    if lost < _UNEVEN or _has_small(ranks):  # small tensors cause waits, too: see _moving()
        return []
    what = "the ranks wait for each other in turn: no single rank is slow."
    advice = "Give each rank equally large batches and its own core (OMP_NUM_THREADS)."
    return [Finding("uneven ranks", lost, what, advice)]


def _has_small(ranks: Sequence[RankSteps]) -> bool:
    one = ranks[0]
    return one.small >= _MANY and one.small > one.tensors / 2


def _moving(ranks: Sequence[RankSteps], awaited: Dict[int, int]) -> List[Finding]:
    one, exposed = ranks[0], _median(ranks, "exposed")
    size = live.size_text(one.bytes)
    if _has_small(ranks):
        what = (
            f"{one.small:.0f} of {one.tensors:.0f} tensors a step are below {SMALL_BYTES // 1000} "
            "kB: negotiating such a tensor costs more than sending it."
        )
        advice = (
            "Let a DistributedOptimizer or DistributedTrainer group them, or call "
            "grouped_allreduce; start several calls before you wait for the first."
        )
        return [Finding("small tensors", exposed + _median(ranks, "lost"), what, advice)]
    if one.bytes < SMALL_BYTES * max(one.tensors, 1):
        what = (
            f"each of the {one.tensors:.0f} tensors waits once for all ranks, and a step is too "
            f"short to hide these waits; sending fewer bytes ({size} a step) gains nothing."
        )
        advice = "Use larger batches or backward_passes_per_step; or start fewer ranks."
        return [Finding("short steps", exposed, what, advice)]
    hosts = sorted({each.host for each in ranks})
    if len(hosts) < 2:
        what = f"communication ({size} a step) after the last gradient is ready."
        advice = "Send less: hvd.Compression.fp16, backward_passes_per_step, larger batches."
        return [Finding("exposed", exposed, what, advice)]
    seconds = statistics.median(step.exposed for step in one.steps)
    rate = 8 * one.bytes / max(seconds, 1e-9) / 1e9
    what = f"waiting for the network of {len(hosts)} hosts: {size} a step at {rate:.2g} Gbit/s."
    by_host = {each.rank: each.host for each in ranks}
    counts = {host: sum(n for r, n in awaited.items() if by_host.get(r) == host) for host in hosts}
    worst = max(hosts, key=lambda host: counts[host])
    if counts[worst] > sum(counts.values()) / 2:
        what += f" Transfers wait for {worst} most."
    advice = (
        "Measure the link (`hvdliterun -H ... hvdlite-bench`); select a faster one "
        "with --network-interfaces; send less: hvd.Compression.fp16, larger batches."
    )
    return [Finding("network", exposed, what, advice)]


def _alone(ranks: Sequence[RankSteps]) -> List[Finding]:
    # median_low: if only one of two ranks takes long, the cause is "slow rank", not its input.
    reads = statistics.median_low([each.share("input") for each in ranks])
    updates = statistics.median_low([each.share("update") for each in ranks])
    return [
        Finding(
            "input", reads, "the ranks wait for input between an update and the next forward.",
            "Load data ahead: more workers (num_workers), prefetching, a faster format or disk.",
        ),
        Finding(
            "update", updates, "the optimizer updates the weights.",
            "Use a fused or foreach optimizer, or larger batches, so that there are fewer updates.",
        ),
    ]  # fmt: skip


def text(job: str, ranks: Sequence[RankSteps], found: Sequence[Finding]) -> str:
    """Return a text about the findings, in lines of at most 80 characters."""
    if not ranks:
        return f"{job}: no tensor name has occurred twice, so there are no steps to judge yet"
    hosts = sorted({each.host for each in ranks if each.host})
    where = f" on {', '.join(hosts[:4])}{', ...' * (len(hosts) > 4)}" if hosts else ""
    count = max(len(each.steps) for each in ranks)
    typical = statistics.median(one.seconds for each in ranks for one in each.steps)
    head = f"{job}: {len(ranks)} ranks{where}, {count} steps of {typical * 1e3:.3g} ms (median)"
    lines = [head]
    for each in found:
        lines += _wrapped(f"{each.share:4.0%} ", f"{each.what} {each.advice}")
    if found:
        rest = max(1 - sum(each.share for each in found), 0)
        lines += _wrapped(
            f"{rest:4.0%} ", f"the ranks' work, and causes below {LEAST:.0%} of a step."
        )
    if count < _ENOUGH:
        lines += _wrapped("     ", "too few steps to tell which rank is slow.")
    elif not found:
        lost, exposed = _median(ranks, "lost"), _median(ranks, "exposed")
        lines += _wrapped(
            "     ",
            f"nothing to gain: {1 - lost - exposed:.0%} of a step is the ranks' own work, "
            f"{lost:.0%} waiting for other ranks, {exposed:.0%} communication without overlap.",
        )
    return "\n".join(lines)


def _wrapped(label: str, text: str) -> List[str]:
    indent = " " * len(label)
    return textwrap.wrap(text, _WIDTH, initial_indent=label, subsequent_indent=indent)
