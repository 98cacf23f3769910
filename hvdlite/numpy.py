"""Collectives on NumPy arrays. MXNet is not needed.

Each call waits until the work is done. The forms that end in ``_async`` do not wait; they return a
handle for ``poll`` and ``synchronize``.

Dtypes: float16, float32, float64, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool,
and the bfloat16 of ml_dtypes, which TensorFlow and JAX use. Arrays may be read-only and of any
memory layout. ``out`` receives the result and is returned; it must have the result's shape and
dtype, and may be the input itself. A grouped call starts the collectives of all its arrays
together; its error names every array that failed.
"""

from functools import partial
from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from hvdlite.core import frameworks, grouped, prepared
from hvdlite.core.collectives import dense, run
from hvdlite.core.handles import Handle, ended, poll, started, synchronize, waiting  # noqa: F401
from hvdlite.core.names import group_names, recurring_name, restart_calls, tensor_name
from hvdlite.core.native import lib
from hvdlite.core.outs import check_out, check_outs, result_array
from hvdlite.core.prepared import Prepared, again, describe_call
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of
from hvdlite.core.reduce_ops import VALUES, Average, Sum
from hvdlite.core.shared_memory import shared_bytes

globals().update(VALUES)  # adds Min, Max, ... to this module


def allreduce(
    array: np.ndarray, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    out: Optional[np.ndarray] = None,
) -> np.ndarray:  # fmt: skip
    """Return ``op`` over all ranks of ``array * prescale_factor``, times ``postscale_factor``.

    :param array: of the same shape and dtype on every rank.
    :param op: Average, Sum, Min, Max, Product or Adasum, as for ``hvdlite.allreduce``.
    :param prescale_factor: finite and the same on every rank, as ``postscale_factor``. Integers are
        truncated after the prescaling, before the sum; int64 wraps before an Average divides.
    :raises ValueError: an argument is wrong; nothing has been sent.
    :raises hvdlite.HvdliteError: the ranks disagree, a rank has left, or the transport failed.

    Repeated calls with the same ``name`` and arguments are cheaper, because they are not checked
    again.
    """
    if name is None:
        name = recurring_name("allreduce", process_set)
    options = name, op, prescale_factor, postscale_factor, process_set
    return again("allreduce", _allreduce, array, options, out)


def allreduce_plan(
    array: np.ndarray, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    out: Optional[np.ndarray] = None,
) -> Callable[[], np.ndarray]:  # fmt: skip
    """Return a function without arguments that repeats this ``allreduce`` at less cost.

    Each call uses the values that ``array`` has at that time. Other ranks may instead call
    ``allreduce`` with the same ``name``. Without a name, all calls are named after the line that
    makes the plan::

        average = hvd.numpy.allreduce_plan(x, "x", out=x)
        for x[:] in batches:
            average()

    :param array: contiguous in C order, as is ``out``. The function keeps references to both.
        Without ``out`` each call returns a new array.
    :raises ValueError: as :func:`allreduce`. The returned function raises all other errors, and
        fails if two threads call it at the same time.
    """
    call = name, op, prescale_factor, postscale_factor, process_set
    full, memory, *details = describe_call("allreduce", array, None, call)
    check_out(full, out, memory.shape, memory.owner.dtype)
    fits = out is None or result_array(out, memory.shape, memory.owner, in_place=True) is out
    if memory.owner is not array or not fits:
        raise ValueError(
            f"tensor '{full}': expected NumPy arrays in C order, and an out that is the array or "
            "does not overlap it: pass np.ascontiguousarray(array), and a new array as out"
        )
    planned, source = Prepared(full, memory, *details), memory.address
    address = None if out is None else out.ctypes.data

    def plan() -> np.ndarray:
        result = np.empty(array.shape, array.dtype) if out is None else out
        prepared.run(planned, source, address or result.ctypes.data, (array, result))
        return result

    return plan


def empty_shared(shape, dtype=float) -> np.ndarray:
    """Return a new array in memory that all ranks of the host map. Collective.

    :func:`allreduce` with ``out=array`` copies nothing if every rank gives this array, or the same
    part of it. The memory is freed with the last array that uses it. If ranks share no memory,
    because each host has one rank or a new job has begun, the array is an ordinary array.

    :param shape: as for ``numpy.empty``, like ``dtype``; the same on every rank.
    :raises hvdlite.HvdliteError: shape or dtype differ between ranks.
    """
    private = dense(np.empty(shape, dtype))
    memory = shared_bytes(private.nbytes, f"{private.shape} {private.dtype}")
    return private if memory is None else memory.view(private.dtype).reshape(private.shape)


@waiting
def grouped_allreduce(
    arrays: Sequence[np.ndarray], name: Optional[str] = None, op: int = Average,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, out: Optional[Sequence[np.ndarray]] = None,
) -> List[np.ndarray]:  # fmt: skip
    """Do what :func:`allreduce` does for several arrays; ``out`` has an array for each of them."""
    names = group_names(tensor_name("allreduce", name, process_set), arrays)
    scales = prescale_factor, postscale_factor
    return grouped.reductions(lib.HVD_ALLREDUCE, names, arrays, op, scales, process_set, out)


def reducescatter(
    array: np.ndarray, name: Optional[str] = None, op: int = Average, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    out: Optional[np.ndarray] = None,
) -> np.ndarray:  # fmt: skip
    """Return this rank's rows of the result of :func:`allreduce`; any ``op`` except Adasum.

    Ranks get their rows in the order of ranks. If the rows do not divide evenly, the first ranks
    get one more row.

    :param array: of at least one dimension; all other arguments and the errors are as for
        :func:`allreduce`.
    """
    if name is None:
        name = recurring_name("reducescatter", process_set)
    options = name, op, prescale_factor, postscale_factor, process_set
    return again("reducescatter", _reducescatter, array, options, out)


@waiting
def grouped_reducescatter(
    arrays: Sequence[np.ndarray], name: Optional[str] = None, op: int = Average,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, out: Optional[Sequence[np.ndarray]] = None,
) -> List[np.ndarray]:  # fmt: skip
    """Do what :func:`reducescatter` does for several arrays; ``out`` has an array for each."""
    names = group_names(tensor_name("reducescatter", name, process_set), arrays)
    scales = prescale_factor, postscale_factor
    return grouped.reductions(lib.HVD_REDUCESCATTER, names, arrays, op, scales, process_set, out)


def broadcast(
    array: np.ndarray, root_rank: int = 0, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set, out: Optional[np.ndarray] = None,
) -> np.ndarray:  # fmt: skip
    """Return rank ``root_rank``'s array; ``array`` has the same shape and dtype on every rank.

    :param root_rank: a rank of the job, even if ``process_set`` is given.
    :raises ValueError: as :func:`allreduce`; or ``root_rank`` is not in the set.
    """
    if name is None:
        name = recurring_name("broadcast", process_set)
    return again("broadcast", _broadcast, array, (root_rank, name, process_set), out)


def allgather(
    array: np.ndarray, name: Optional[str] = None, process_set: ProcessSet = global_process_set,
    out: Optional[np.ndarray] = None,
) -> np.ndarray:  # fmt: skip
    """Return the arrays of all ranks, joined along the first dimension.

    :param array: of the same dtype and shape on every rank, but the first dimension may differ; a
        0-d array counts as one row.
    :return: an array of shape (rows of all ranks, ...), in the order of ranks.
    :raises ValueError: as :func:`allreduce`.
    :raises HvdliteError: as :func:`allreduce`.
    """
    if name is None:
        name = recurring_name("allgather", process_set)
    return again("allgather", _allgather, array, (name, process_set), out)


@waiting
def grouped_allgather(
    arrays: Sequence[np.ndarray], name: Optional[str] = None,
    process_set: ProcessSet = global_process_set, out: Optional[Sequence[np.ndarray]] = None,
) -> List[np.ndarray]:  # fmt: skip
    """Do what :func:`allgather` does for several arrays; ``out`` has an array for each of them."""
    names = group_names(tensor_name("allgather", name, process_set), arrays)
    return _gather(names, arrays, process_set, out)


def alltoall(
    array: np.ndarray, splits: Optional[Sequence[int]] = None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set, out: Optional[np.ndarray] = None,
):  # fmt: skip
    """Send rows to every rank; return the rows that this rank receives, in the order of ranks.

    :param array: of at least one dimension; only the first dimension may differ between ranks.
    :param splits: how many rows go to each rank: the first rows to rank 0, the next to rank 1, and
        so on. Remaining rows are not sent. Without ``splits`` all ranks get the same number.
    :return: the received rows; with ``splits`` a pair: the rows, and the number from each rank.
    :raises ValueError: as :func:`allreduce`; or the sum of ``splits`` is larger than the number of
        rows; or without ``splits`` the rows do not divide evenly.
    :raises hvdlite.HvdliteError: as :func:`allreduce`.
    """
    if name is None:
        name = recurring_name("alltoall", process_set)
    if splits is not None:
        return _alltoall(array, splits, name, process_set, out).synchronize()
    return again("alltoall", _alltoall, array, (None, name, process_set), out)


grouped_allreduce_async = grouped_allreduce.start
grouped_reducescatter_async = grouped_reducescatter.start
grouped_allgather_async = grouped_allgather.start


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Wait until every rank has made this call.

    :param process_set: the ranks that take part; only these ranks make the call.
    :raises hvdlite.HvdliteError: a rank has left.
    """
    nothing = np.empty(0, np.uint8)
    run(lib.HVD_ALLREDUCE, "barrier", nothing, nothing, op=Sum, group=group_of(process_set))


def join(process_set: ProcessSet = global_process_set) -> int:
    """Tell the other ranks that this rank has no more data; return the last rank that joined.

    Join at the end of an epoch if ranks have different numbers of batches. The call waits until all
    ranks have joined. Meanwhile this rank contributes zeros to the other ranks' sums; an Average is
    over the ranks that still have data. Collectives that zeros would change, such as Min, raise::

        for batch in batches:
            ...
            trainer.step(batch_size)
        last = hvd.join()
        hvd.broadcast_parameters(params, root_rank=last)  # rank `last` has taken every step

    :param process_set: the ranks that take part; only these ranks make the call.
    :raises hvdlite.HvdliteError: a rank has left.
    """
    last = np.empty(1, np.int64)
    frameworks.wait_all()  # so that the last rank to join has finished its own steps
    run(lib.HVD_JOIN, "join", last, last, group=group_of(process_set))
    restart_calls(process_set)
    return process_set.ranks[last[0]]


# The functions below start a collective and return its Handle.


def _reduce(
    verb, array, name=None, op=Average, prescale_factor=1.0, postscale_factor=1.0,
    process_set=global_process_set, out=None,
) -> Any:  # fmt: skip
    kind, full = getattr(lib, f"HVD_{verb.upper()}"), tensor_name(verb, name, process_set)
    scales, outs = (prescale_factor, postscale_factor), None if out is None else [out]
    return grouped.reductions(kind, [full], [array], op, scales, process_set, outs).then(_first)


def _broadcast(array, root_rank=0, name=None, process_set=global_process_set, out=None) -> Any:
    names, outs = [tensor_name("broadcast", name, process_set)], None if out is None else [out]
    return grouped.broadcasts(names, [array], root_rank, process_set, outs).then(_first)


def _allgather(array, name=None, process_set=global_process_set, out=None) -> Any:
    name = tensor_name("allgather", name, process_set)
    outs = None if out is None else [out]
    return _gather([name], [array], process_set, outs).then(_first)


def _alltoall(array, splits=None, name=None, process_set=global_process_set, out=None) -> Any:
    array, name = dense(array), tensor_name("alltoall", name, process_set)
    check_out(name, out, (None, *array.shape[1:]), array.dtype)
    handle = grouped.exchange(name, array, splits, process_set, out)
    return handle.then(_first) if splits is None else handle


_allreduce, _reducescatter = partial(_reduce, "allreduce"), partial(_reduce, "reducescatter")
allreduce_async = started(allreduce, _allreduce)
reducescatter_async = started(reducescatter, _reducescatter)
broadcast_async = started(broadcast, _broadcast)
allgather_async = started(allgather, _allgather)
alltoall_async = started(alltoall, _alltoall)


def _gather(names, arrays, process_set, outs) -> Any:
    arrays = [dense(array) for array in arrays]
    outs = check_outs(names, outs, [(None, *array.shape[1:]) for array in arrays], arrays)
    if not arrays:
        return ended([])
    handle = grouped.gather(names, arrays, process_set, outs)
    return handle.then(lambda pairs: [gathered for gathered, _rows in pairs])


def _first(results: list):
    return results[0]
