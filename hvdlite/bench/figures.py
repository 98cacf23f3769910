"""The arithmetic of the bench: from seconds, bytes and ranks to the columns of the table."""

from typing import Any, Dict, NamedTuple, Optional, Sequence

import numpy as np

from hvdlite.bench.cases import KINDS, OPTIMIZERS, Case


class Sample(NamedTuple):
    """The measurements of one case, with one entry for each repetition.

    :ivar seconds: from the barrier before the work to the end of the last rank.
    :ivar cpu_seconds: CPU seconds of all threads of all ranks.
    :ivar alone: seconds of the same work without the library, which is done immediately after the
        work with the library; empty: not measured.
    """

    seconds: Sequence[float]
    cpu_seconds: Sequence[float]
    alone: Sequence[float] = ()


def busbw(kind: str, ranks: int, algbw: float) -> float:
    """Return the bytes per second that each rank must send and receive by any algorithm.

    Defined as in https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md; comparable
    between different numbers of ranks.

    :param algbw: the bytes of the case per second.
    """
    return algbw * KINDS[kind].wire(ranks)


def floor_seconds(
    kind: str, ranks: int, nbytes: int, bandwidth: float, optimizer: str = "sgd"
) -> float:
    """Return the least time of the work on one host if memory is the limit.

    An allreduce takes 2 p S / B: the S bytes of each of p ranks are read once and written once. An
    update with momentum takes (p + 4) S / B: the gradients of p ranks are read; one copy of weights
    and momentum is read and written. Data that fits into the caches can be faster.

    :param bandwidth: B, bytes per second of memory, all ranks at once.
    """
    traffic = OPTIMIZERS[optimizer].traffic if kind == "update" else KINDS[kind].traffic
    return traffic(ranks) * nbytes / bandwidth


def columns(case: Case, ranks: int, sample: Sample, bandwidth: Optional[float]) -> Dict:
    """Return the columns of a row: seconds, bytes per second, CPU seconds per GB of the ranks'
    inputs."""
    p50, p90, p99 = np.percentile(sample.seconds, (50, 90, 99)).tolist()
    row: Dict[str, Any] = {
        "name": case.name, "kind": case.kind, "memory": case.memory, "dtype": case.dtype,
        "label": case.label, "optimizer": case.optimizer, "arrays": len(case.shapes),
        "bytes": case.nbytes, "ranks": ranks, "repeats": len(sample.seconds),
        "p50": p50, "p90": p90, "p99": p99, "least": min(sample.seconds),
    }  # fmt: skip
    cpu = float(np.median(sample.cpu_seconds))
    if sample.alone:
        row["alone"] = float(np.median(sample.alone))
        row["speed_kept"] = float(np.median(np.divide(sample.alone, sample.seconds)))
    row["cpu_seconds"] = cpu
    if case.kind in KINDS:
        brought = KINDS[case.kind].gives(ranks) * case.nbytes * ranks
        row["algbw"] = case.nbytes / p50
        row["busbw"] = busbw(case.kind, ranks, row["algbw"])
        row["cpu_seconds_per_gb"] = cpu / (brought / 1e9)
    if bandwidth and case.kind != "step":  # not for a training step, which moves little data
        row["floor"] = floor_seconds(case.kind, ranks, case.nbytes, bandwidth, case.optimizer)
        row["floor_share"] = row["floor"] / p50
    return row
