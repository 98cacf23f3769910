"""Reads the devices of each collective of a compiled program from the text of the program's HLO.

XLA writes the devices in three ways: as lists, as reshaped and transposed ranges, or as axes of a
mesh. XLA does not write the devices of permutations. This module refuses any other notation. If
this module misses a collective, the C library refuses to run it.
"""

import math
import re
from typing import Any, List, Optional, Tuple

import numpy as np

_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute"
    r"|collective-broadcast)(-start)?\("
)
_LISTS = re.compile(r"replica_groups=\{(?:\{[\d,{} ]*\})?\}")
_RANGE = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, ?device_ids="
    r"\((?:([\d,]+)|\[([\d,]+)\](?:T\(([\d,]+)\))?)\))? ?\{([^}]*)\}"
)
_SHAPE = re.compile(r"\b(pred|bf16|[a-z]\d+)\[([\d,]*)\]")
# limit on a reduction's elements, and on the bytes of other collectives: XLA passes an int
_MOST = (1 << 31) - 1


def parse(text: str, count: int) -> List[Tuple[int, ...]]:
    """Return the groups of all collectives, each once, as indices of the program's devices.

    :param text: the module's HLO after optimization.
    :param count: the number of the program's devices.
    :raises RuntimeError: a collective is too large or of float16, or its devices can't be read.
    """
    found: List[Tuple[int, ...]] = []
    for line in text.split("\n"):
        collective = _COLLECTIVE.search(line)
        if collective:
            _check(line[: collective.start()], collective.group(1))
            found += [tuple(map(int, group)) for group in _groups(line, count)]
    return list(dict.fromkeys(found))


def _check(head: str, kind: str) -> None:
    """Raise RuntimeError if XLA can't pass the result, described in ``head``, to MPI."""
    for dtype, dims in _SHAPE.findall(head.partition("=")[2]):
        bits = int(re.sub(r"\D", "", dtype) or 8)  # pred has no number: a pred is one byte
        each = 1 if "reduce" in kind else max(bits // 8, 1)
        if math.prod(_integers(dims)) * each > _MOST:
            raise RuntimeError(
                f"hvdlite.jax: a collective of {dtype}[{dims}] has more than 2^31-1 elements or "
                "bytes, which XLA cannot count: split the array"
            )
        if dtype == "f16" and kind in ("all-reduce", "all-gather", "reduce-scatter"):
            raise RuntimeError(
                f"hvdlite.jax: XLA can't pass float16 to MPI, and its partitioner has added {kind} "
                "of float16: convert the array to float32 or bfloat16, or use jax.shard_map and "
                "jax.lax"
            )


def _integers(text: Optional[str]) -> List[int]:
    return [int(each) for each in (text or "").split(",") if each.strip()]


def _range(dims: Optional[str], order: Optional[str]) -> np.ndarray:
    shape = _integers(dims)
    return np.arange(math.prod(shape)).reshape(shape).transpose(_integers(order) or None)


def _groups(line: str, count: int) -> Any:
    if "replica_groups=" not in line:
        return [range(count)]
    lists, ranges, mesh = _LISTS.search(line), _RANGE.search(line), _MESH.search(line)
    if lists:
        return [*map(_integers, re.findall(r"\{([\d, ]+)\}", lists[0]))] or [range(count)]
    if ranges:
        return _range(ranges[2], ranges[3]).reshape(_integers(ranges[1]))
    if mesh:
        axes, listed, dims, order, chosen = mesh.groups()
        ids = np.array(_integers(listed)) if listed else _range(dims, order).ravel()
        along = _along(axes, chosen)
        return ids[along] if listed or dims else along
    raise RuntimeError(
        "hvdlite.jax: this jaxlib describes the devices of a collective in an unknown format: "
        + line[line.find("replica_groups") :][:200]
    )


def _along(axes: str, chosen: str) -> np.ndarray:
    """Return the groups along some axes of a mesh, or along parts of axes.

    ``'x':(2)4`` is a part of axis x: the axis is split into (2, 4, rest); 4 is the part. Devices
    with equal coordinates outside the chosen parts are a group, in the order of their coordinates
    inside these parts.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'?([^',=]+)'?=(\d+)", axes)}
    outside = dict(zip(sizes, np.indices(tuple(sizes.values())).reshape(len(sizes), -1)))
    inside: List[np.ndarray] = []
    count = 1
    for name, before, part in re.findall(r"'?([^',:{} ]+)'?(?::\((\d+)\)(\d+))?", chosen):
        size = int(part or sizes[name])
        step = sizes[name] // (int(before or 1) * size)
        inside.append(outside[name] // step % size)
        outside[name] = outside[name] - inside[-1] * step
        count *= size
    # in reverse, because lexsort's last key is its primary key
    return np.lexsort([*inside[::-1], *[*outside.values()][::-1]]).reshape(-1, count)
