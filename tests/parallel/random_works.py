"""Random collectives, in some of which one rank's arguments differ, and a NumPy model of each."""

from typing import NamedTuple

import numpy as np
from numbers_of_ranks import MODEL

import hvdlite as hvd
from hvdlite.core import collectives, reduce_ops
from hvdlite.core.native import lib

ALLREDUCE, BROADCAST = lib.HVD_ALLREDUCE, lib.HVD_BROADCAST
ALLGATHER, REDUCESCATTER, ALLTOALL = lib.HVD_ALLGATHER, lib.HVD_REDUCESCATTER, lib.HVD_ALLTOALL
KINDS = [kind for kind in range(lib.HVD_KINDS) if kind != lib.HVD_JOIN]
DTYPES = [str(dtype) for dtype in collectives.DTYPES]
OPS = {value: name for name, value in reduce_ops.VALUES.items() if name != "Adasum"}
ROWS = (0, 1, 2, 3, 7, 64, 5000)
TRAILING = ((), (1,), (3,), (2, 5))


class Work(NamedTuple):
    """One collective, with the arguments that all ranks are to give."""

    number: int
    kind: int
    dtype: str
    op: int
    root: int
    rows: np.ndarray  # row count of each rank; for an alltoall, of each pair [from, to]
    trailing: tuple
    in_place: bool
    wrong: str  # the field in which one rank differs; "" if all agree
    wrong_rank: int

    def shape(self, rank: int) -> tuple:
        return (int(self.rows[rank].sum()), *self.trailing)

    def input(self, rank: int) -> np.ndarray:
        """Return small whole numbers: any dtype can hold their sums and products."""
        random = np.random.RandomState(97 * self.number + rank)
        return random.randint(0, 3, self.shape(rank)).astype(self.dtype)


def random_work(random, number: int, size: int) -> Work:
    kind, dtype = KINDS[random.randint(len(KINDS))], DTYPES[random.randint(len(DTYPES))]
    ops = [op for op in OPS if dtype != "bool" or op != hvd.Average]
    rows = np.full(size, ROWS[random.randint(len(ROWS))])
    if kind == ALLGATHER:
        rows = random.choice(ROWS[:-1], size)
    if kind == ALLTOALL:
        rows = random.randint(0, 4, (size, size))
    fields = {ALLREDUCE: ["op"], REDUCESCATTER: ["op"], BROADCAST: ["root_rank"]}.get(kind, [])
    wrong = ["dtype", "shape", *fields][random.randint(2 + len(fields))]
    return Work(
        number, kind, dtype, ops[random.randint(len(ops))], random.randint(size), rows,
        TRAILING[random.randint(len(TRAILING))], random.rand() < 0.5,
        wrong if size > 1 and random.rand() < 0.15 else "", random.randint(size),
    )  # fmt: skip


def as_this_rank_has_it(one: Work, rank: int, size: int) -> Work:
    if rank != one.wrong_rank or not one.wrong:
        return one
    other = {
        "dtype": {"dtype": "int64" if one.dtype != "int64" else "int32"},
        "shape": {"trailing": (*one.trailing, 2)},
        "op": {"op": hvd.Max if one.op != hvd.Max else hvd.Min},
        "root_rank": {"root": (one.root + 1) % size},
    }
    return one._replace(**other[one.wrong])


def reduced(one: Work, size: int) -> np.ndarray:
    stack = np.stack([one.input(rank) for rank in range(size)])
    if one.dtype == "bool":
        return stack.any(0) if one.op in (hvd.Sum, hvd.Max) else stack.all(0)
    wide = stack.astype(np.float64)
    result = MODEL[OPS[one.op]](wide, axis=0) / (size if one.op == hvd.Average else 1)
    return result.astype(one.dtype)  # an average of integers is truncated


def result_of(one: Work, rank: int, size: int) -> np.ndarray:
    """Return the result that the NumPy model computes for this rank."""
    if one.kind == BROADCAST:
        return one.input(one.root)
    if one.kind == ALLGATHER:
        return np.concatenate([one.input(r) for r in range(size)])
    if one.kind == ALLTOALL:
        starts = one.rows.cumsum(axis=1) - one.rows
        return np.concatenate([
            one.input(r)[starts[r, rank] : starts[r, rank] + one.rows[r, rank]]
            for r in range(size)
        ])  # fmt: skip
    whole = reduced(one, size)
    return np.array_split(whole, size)[rank] if one.kind == REDUCESCATTER else whole
