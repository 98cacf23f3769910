"""The numbers of ``hvdlite why`` and ``hvdlite top`` in Prometheus's text format 0.0.4."""

from typing import Dict, Iterable, List, Sequence, Tuple

from hvdlite.monitor import live, verdict, why
from hvdlite.monitor.memory import Snapshot

PARTS = {  # part of a step's time, for users -> field of steps.Step, or key of its `noted`
    "waiting": "lost", "moving": "exposed", "input": "input", "update": "update",
}  # fmt: skip
_HELP = {
    "up": "1 while the rank's process runs.",
    "steps_total": "Steps that the rank has begun.",
    "tensors_total": "Tensors whose collectives have ended.",
    "sent_bytes_total": "Bytes of tensors sent to other ranks, by network or shared memory.",
    "waiting_seconds_total": "Seconds in which tensors of this rank waited for other ranks.",
    "step_seconds": "Median time of the last steps.",
    "step_share": "Share of the last steps' time; moving: communication without overlap.",
    "late_seconds": "Seconds of the last operations in which all others waited for this rank only.",
    "gain_share": "Largest share of a step that a remedy of the cause saves (see hvdlite why).",
}
Sample = Tuple[str, Dict[str, object], float]  # name in _HELP, labels, value


def shares(one: verdict.RankSteps) -> Dict[str, float]:
    """Return the shares of a rank's step time, by the names in PARTS."""
    return {part: one.share(field) for part, field in PARTS.items()}


def text(ranks: Sequence[Snapshot]) -> str:
    """Return a job's metrics in Prometheus's format; without ranks, the header lines only."""
    samples = list(_samples(ranks)) if ranks else []
    lines: List[str] = []
    for name, meaning in _HELP.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += [f"# HELP hvdlite_{name} {meaning}", f"# TYPE hvdlite_{name} {kind}"]
        lines += [
            f"hvdlite_{name}{{{_labels(own)}}} {value:.9g}"
            for n, own, value in samples
            if n == name
        ]
    return "\n".join([*lines, ""])


def _labels(labels: Dict[str, object]) -> str:
    def quoted(value: object) -> str:
        return str(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

    return ",".join(f'{name}="{quoted(value)}"' for name, value in labels.items())


def _samples(ranks: Sequence[Snapshot]) -> Iterable[Sample]:
    job = {"job": ranks[0].head["job"]}
    who = {r.rank: {**job, "rank": r.rank, "host": r.head["host"]} for r in ranks}
    late = live.lateness(ranks)
    for one in ranks:
        head, labels = one.head, who[one.rank]
        yield "up", labels, one.state == "runs"
        yield "steps_total", labels, head["steps"]
        yield "tensors_total", labels, head["tensors"]
        yield "sent_bytes_total", {**labels, "by": "network"}, head["bytes_sent_network"]
        yield "sent_bytes_total", {**labels, "by": "memory"}, head["bytes_sent_window"]
        yield "waiting_seconds_total", labels, head["waited"] / 1e9
        yield "late_seconds", labels, late[one.rank]
    found = why.rank_steps_of(ranks)
    for each in found:
        yield "step_seconds", who[each.rank], each.seconds
        for part, share in shares(each).items():
            yield "step_share", {**who[each.rank], "part": part}, share
    for finding in verdict.findings(found):
        yield "gain_share", {**job, "cause": finding.cause}, finding.share
