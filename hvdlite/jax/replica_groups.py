"""The devices that each collective of a compiled program joins, read from the text of its HLO.

XLA writes them in four ways: as lists, as reshaped and transposed ranges, as axes of a mesh, and
not at all, for permutations. An unknown way raises an error. The C library refuses a collective
that is missed here.
"""

import math
import re
from typing import Any, Dict, List, Sequence, Set, Tuple

import numpy as np

_COLLECTIVE = re.compile(
    r" (all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute"
    r"|collective-broadcast)(-start)?\("
)
_LISTS = re.compile(r"replica_groups=\{(\{[\d,{} ]*\})?\}")
_RANGE = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, ?device_ids=\((\[[\d,]+\](?:T\([\d,]+\))?|[\d,]+)\))? ?\{([^}]*)\}"
)
_DEVICE_IDS = re.compile(r"\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_SHAPE = re.compile(r"\b(pred|bf16|[a-z]\d+)\[([\d,]*)\]")
# most elements of a sum, or bytes of others: XLA passes the count to MPI as an int
_MOST = (1 << 31) - 1


def of(text: str, count: int) -> List[Tuple[int, ...]]:
    """Return the groups of all collectives, without repetitions: indices of the program's devices.

    :param text: the module's HLO after optimization.
    :param count: how many devices the program has.
    :raises RuntimeError: a collective is too large or of float16, or its devices are unreadable.
    """
    found: Dict[Tuple[int, ...], None] = {}
    for line in text.split("\n"):
        collective = _COLLECTIVE.search(line)
        if collective:
            _check(line, collective)
            for group in _groups(line, count):
                found[tuple(int(i) for i in group)] = None
    return list(found)


def _check(line: str, collective: "re.Match[str]") -> None:
    kind = collective.group(1)
    for dtype, dims in _SHAPE.findall(line[: collective.start()].partition("=")[2]):
        width = re.sub(r"\D", "", dtype)  # bits of an element
        each = 1 if "reduce" in kind else max(int(width or 8) // 8, 1)
        if math.prod(_integers(dims)) * each > _MOST:
            raise RuntimeError(
                f"hvdlite.jax: a collective of {dtype}[{dims}] has more than 2^31-1 elements or "
                "bytes, which XLA cannot count: split the array"
            )
        if dtype == "f16" and kind in ("all-reduce", "all-gather", "reduce-scatter"):
            raise RuntimeError(
                f"hvdlite.jax: XLA can't pass float16 to MPI, and its partitioner has added {kind} "
                "of float16: convert to float32 or bfloat16 there, or use jax.shard_map and jax.lax"
            )


def _integers(text: str) -> List[int]:
    return [int(each) for each in text.split(",") if each.strip()]


def _range(dims: Sequence[int], order: Sequence[int]) -> np.ndarray:
    array = np.arange(math.prod(dims)).reshape(dims)
    return array.transpose(order) if order else array


def _groups(line: str, count: int) -> Any:
    if "replica_groups=" not in line:
        return [range(count)]
    lists, ranges, mesh = _LISTS.search(line), _RANGE.search(line), _MESH.search(line)
    if lists:
        groups = [_integers(group) for group in re.findall(r"\{([\d, ]*)\}", lists.group(1) or "")]
        return [group for group in groups if group] or [range(count)]
    if ranges:
        shape, dims, order = (_integers(text or "") for text in ranges.groups())
        return _range(dims, order).reshape(shape)
    if mesh:
        axes, ids, chosen = mesh.groups()
        along = _along(axes, chosen)
        return _device_ids(ids)[along] if ids else along
    said = line[line.find("replica_groups") :][:200]
    raise RuntimeError(
        f"hvdlite.jax: this jaxlib writes a collective's devices in an unknown way: {said}"
    )


def _device_ids(text: str) -> np.ndarray:
    match = _DEVICE_IDS.match(text)
    if not match:
        return np.array(_integers(text))
    return _range(_integers(match.group(1)), _integers(match.group(2) or "")).reshape(-1)


def _along(axes: str, chosen: str) -> np.ndarray:
    """Return the groups along some axes of a mesh, or along parts of axes.

    ``'x':(2)4`` is the part of axis x that has 2 before it and the size 4. Each axis is split where
    a part begins or ends; the parts that are not chosen number the groups.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'?([^',=]+)'?=(\d+)", axes)}
    cuts: Dict[str, Set[int]] = {name: {1, size} for name, size in sizes.items()}
    wanted: List[Tuple[str, int, int]] = []
    for name, before, size in re.findall(r"'?([^',:{}]+)'?(?::\((\d+)\)(\d+))?", chosen):
        name = name.strip()
        if name:
            first = int(before or 1)
            last = first * int(size) if size else sizes[name]
            cuts[name] |= {first, last}
            wanted.append((name, first, last))
    dims: List[int] = []
    place: Dict[Tuple[str, int], int] = {}  # (axis, first index) -> number of the part
    for name in sizes:
        ordered = sorted(cuts[name])
        for first, last in zip(ordered, ordered[1:]):
            place[name, first] = len(dims)
            dims.append(last // first)
    inner = [
        place[name, cut]
        for name, first, last in wanted
        for cut in sorted(cuts[name])
        if first <= cut < last
    ]
    outer = [i for i in range(len(dims)) if i not in inner]
    array = _range(dims, outer + inner)
    return array.reshape(-1, math.prod(dims[i] for i in inner))
