"""Collectives on MXNet arrays, ``mx.nd`` or ``mx.np``, on CPUs.

The calls are asynchronous, like MXNet's own operators: they return immediately, and
``wait_to_read()`` or any use of the result waits. Every rank must make the call, with arrays of the
same shape and dtype. Ranks match their tensors by ``name``, by default the calling line of the
script. All dtypes of MXNet work.

If ranks disagree, every rank raises the same MXNetError, and the job continues. allgather, alltoall
and reducescatter wait for the other ranks' calls and raise at the call; the other collectives raise
when the caller waits for the result. A wrong argument raises ValueError at the call.

Under ``autograd.record()`` the results have gradients, except results written in place. Gradients
have Horovod's scale: docs/training.md, "Gradients through collectives". Backward runs another
collective, so backward must pass through a result on every rank or on no rank.

``grouped_...`` reduces several tensors as one operation, which is the fastest way for many small
tensors. The group is sent when all its tensors are written, and all its results are ready at the
same time. A wrong tensor raises before anything is sent. If some tensors fail later, the first wait
for any tensor of the group raises an error that names the failed tensors.
"""

from contextlib import suppress
from typing import List, Optional, Sequence

from mxnet import MXNetError
from mxnet.autograd import get_symbol

from hvdlite.core.arguments import op_of, wrong
from hvdlite.core.names import call_name, group_names, tensor_name
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of
from hvdlite.core.reduce_ops import Average
from hvdlite.mxnet import collectives, differentiable
from hvdlite.mxnet.push import (
    Described,
    Settings,
    describe_allreduce,
    is_recording,
    push_in_place,
    recent,
    validate,
)


def allreduce(
    tensor, average: Optional[bool] = None, name: Optional[str] = None, priority: int = 0,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, op: Optional[int] = None,
):  # fmt: skip
    """Return ``op`` over all ranks of ``tensor * prescale_factor``, times ``postscale_factor``.

    :param tensor: array of any shape, including 0-d and empty; the call does not change it.
    :param average: the older form of ``op``: True for Average, False for Sum.
    :param name: the same on every rank; unique among the tensors that are being reduced.
    :param priority: among the tensors that wait, the one with the highest priority runs first.
    :param prescale_factor: the factor before the reduction; ``postscale_factor``: the factor after
        it. Both are finite and the same on every rank. Integers are truncated toward zero after
        each multiplication.
    :param process_set: the ranks that take part; no other rank may make the call.
    :param op: ``hvd.Average`` (the default; truncates integers toward zero), ``Sum``, ``Min``,
        ``Max``, ``Product``, or ``Adasum`` (Maleki et al., "Scaling Distributed Training with
        Adaptive Summation", 2020: floating-point dtypes only; adds orthogonal gradients, averages
        parallel ones). For bool, Sum and Max are logical or, Min and Product are logical and.
        float16 and bfloat16 are reduced in float32 and rounded once. Integers wrap on overflow, as
        in NumPy; an int64 sum wraps before Average divides it.
    :return: an array of the shape, dtype and kind (``mx.nd``, ``mx.np``) of ``tensor``.
    :raises ValueError: at the call: ``init()`` was not called, both ``average`` and ``op`` are
        given, an unsupported dtype or storage type, a bool average, Adasum of integers.
    :raises MXNetError: at the wait, on every rank: ranks disagree, or a rank has failed or left.
    """
    names = [tensor_name("allreduce", name, process_set)]
    scales = prescale_factor, postscale_factor
    return _allreduce(names, [tensor], op_of(average, op), scales, priority, process_set)[0]


def allreduce_(
    tensor, average: Optional[bool] = None, name: Optional[str] = None, priority: int = 0,
    prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, op: Optional[int] = None,
):  # fmt: skip
    """Do what :func:`allreduce` does, in place; return ``tensor``."""
    if name is None:
        name = call_name("allreduce", process_set)
    _refuse_recorded(name, [tensor])
    arguments = average, op, prescale_factor, postscale_factor, priority, group_of(process_set)
    push_in_place(_described(name, arguments), tensor)
    return tensor


def grouped_allreduce(
    tensors: Sequence, average: Optional[bool] = None, name: Optional[str] = None,
    priority: int = 0, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, op: Optional[int] = None,
) -> Sequence:  # fmt: skip
    """Do what :func:`allreduce` does for each of the tensors; return an empty list unchanged."""
    names = group_names(tensor_name("allreduce", name, process_set), tensors)
    if not names:
        return tensors
    scales = prescale_factor, postscale_factor
    return _allreduce(names, tensors, op_of(average, op), scales, priority, process_set)


def grouped_allreduce_(
    tensors: Sequence, average: Optional[bool] = None, name: Optional[str] = None,
    priority: int = 0, prescale_factor: float = 1.0, postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set, op: Optional[int] = None,
) -> Sequence:  # fmt: skip
    """Do what :func:`allreduce_` does for each of the tensors; return the list itself."""
    names = group_names(tensor_name("allreduce", name, process_set), tensors)
    _refuse_recorded(names[0] if names else "", tensors)
    scales = prescale_factor, postscale_factor
    return collectives.allreduce_(names, tensors, op_of(average, op), scales, priority, process_set)


def broadcast(
    tensor, root_rank: int, name: Optional[str] = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Return rank ``root_rank``'s tensor on every rank; ``tensor`` does not change.

    :param tensor: of the same shape and dtype on every rank; only the root's values are sent.
    :param root_rank: the root's rank in the job, not its rank in ``process_set``.
    :return: an array of the shape, dtype and kind of ``tensor``.
    :raises ValueError: at the call: as :func:`allreduce`, or ``root_rank`` is not in the set.
    """
    if not is_recording():
        return broadcast_(collectives.copy(tensor), root_rank, name, priority, process_set)
    name = tensor_name("broadcast", name, process_set)
    return differentiable.broadcast(name, tensor, root_rank, priority, process_set)


def broadcast_(
    tensor, root_rank: int, name: Optional[str] = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Overwrite ``tensor`` on every rank with rank ``root_rank``'s tensor; return ``tensor``.

    Arguments and errors are those of :func:`broadcast`.
    """
    name = tensor_name("broadcast", name, process_set)
    _refuse_recorded(name, [tensor])
    return collectives.broadcast_(name, tensor, root_rank, priority, process_set)


def allgather(
    tensor, name: Optional[str] = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Return the tensors of all ranks, joined along the first dimension in the order of ranks.

    A 0-d tensor counts as one row. The call waits until every rank has made the call, because the
    shape of the result depends on all ranks; the data follows asynchronously.

    :param tensor: of the same dtype on every rank, and of the same shape except for the first
        dimension, which may be 0.
    :return: an array of shape (rows of all ranks, ...) and of ``tensor``'s kind.
    :raises ValueError: at the call: as :func:`allreduce`.
    :raises MXNetError: at the call, on every rank: ranks disagree on the dtype or on a dimension
        other than the first, or a rank has failed or left.
    """
    name = tensor_name("allgather", name, process_set)
    return _allgather(name, [name], [tensor], priority, process_set)[0]


def grouped_allgather(
    tensors: Sequence, name: Optional[str] = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
) -> Sequence:  # fmt: skip
    """Do what :func:`allgather` does for each of the tensors, waiting once for their shapes."""
    name = tensor_name("allgather", name, process_set)
    names = group_names(name, tensors)
    if not names:
        return tensors
    return _allgather(name, names, tensors, priority, process_set)


def reducescatter(
    tensor, op: int = Average, name: Optional[str] = None, priority: int = 0,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
):  # fmt: skip
    """Return this rank's rows of the array that :func:`allreduce` would return.

    The rows are divided in the order of ranks. If the rows do not divide evenly, the first ranks
    get one more row. ``tensor`` does not change. The call waits until every rank has made the
    call, and raises if the ranks disagree; the data follows asynchronously.

    :param tensor: array of at least one dimension, of the same shape on every rank.
    :param op: as for :func:`allreduce`, like the factors, but not Adasum.
    :return: an array of shape (rows of this rank, ...), which may have 0 rows.
    :raises ValueError: at the call: as :func:`allreduce`; ``tensor`` is 0-d.
    :raises MXNetError: at the call, on every rank: the ranks disagree.
    """
    return scatter(
        True, False, tensor, op, name, priority, process_set, prescale_factor, postscale_factor
    )


def grouped_reducescatter(
    tensors: Sequence, op: int = Average, name: Optional[str] = None, priority: int = 0,
    process_set: ProcessSet = global_process_set, prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Sequence:  # fmt: skip
    """Do what :func:`reducescatter` does for each of the tensors."""
    return scatter(
        True, True, tensors, op, name, priority, process_set, prescale_factor, postscale_factor
    )


def scatter(tell, grouped, tensors, op, name, priority, process_set, *scales):
    """Reduce and scatter one tensor or several.

    :param tell: True: wait until all ranks have made the call, and raise here if ranks disagree.
    :param grouped: True: ``tensors`` is a sequence; False: ``tensors`` is one tensor.
    """
    name = tensor_name("reducescatter", name, process_set)
    names, inputs = (group_names(name, tensors), tensors) if grouped else ([name], [tensors])
    if not names:
        return tensors
    work = names, inputs, op_of(None, op), scales, priority, process_set
    alike = collectives.alike_to_scatter(name, tell, *work)
    module = differentiable if is_recording() else collectives
    parts = module.reducescatter(*work)
    if not alike:
        collectives.raise_now(parts)
    return parts if grouped else parts[0]


def alltoall(
    tensor, splits: Optional[Sequence[int]] = None, name: Optional[str] = None, priority: int = 0,
    process_set: ProcessSet = global_process_set,
):  # fmt: skip
    """Send rows to every rank; return the rows that this rank receives, in the order of ranks.

    The call waits until every rank has made the call, because the shape of the result depends on
    all ranks; the data follows asynchronously.

    :param tensor: array of at least one dimension; only the first dimension may differ by rank.
    :param splits: how many rows go to each rank: the first rows go to rank 0, the next to rank 1.
        Rows left over are not sent. Without ``splits`` every rank gets the same number of rows.
    :return: the received rows; with ``splits``, a pair: the received rows, and the number of rows
        from each rank, as int32.
    :raises ValueError: at the call: ``splits`` is not one whole number per rank, or is an NDArray
        of floats, or its sum exceeds the rows of ``tensor``; without ``splits`` the rows do not
        divide evenly; ``tensor`` is 0-d. The error is an MXNetError as well.
    :raises MXNetError: at the call, on every rank: ranks disagree on the dtype or the columns.
    """
    name = tensor_name("alltoall", name, process_set)
    group_of(process_set)  # raises on ranks outside of the set
    # Check the tensor first: an error later would leave the other ranks waiting for splits.
    validate(lib.HVD_ALLTOALL, name, tensor, priority=priority)
    matrix, alike = collectives.all_splits(name, tensor, splits, process_set)
    function = differentiable.alltoall if is_recording() else collectives.alltoall
    out = function(name, tensor, matrix, priority, process_set)
    if not alike:
        collectives.raise_now([out])
    if splits is None:
        return out
    received = matrix[:, process_set.rank()]
    return out, collectives.module_of(tensor).array(received, dtype="int32")


def _refuse_recorded(name, tensors) -> None:
    """Raise ValueError if autograd has recorded a tensor: backward may need its old values.

    MXNet's own in-place operators also raise an error here.
    """
    if not is_recording():
        return
    for tensor in tensors:
        with suppress(MXNetError, AttributeError):  # the array is not recorded, or is no array
            get_symbol(tensor)
            raise ValueError(
                f"tensor '{name}' has been recorded by autograd.record(), so this call can't "
                "overwrite it: call the function that returns a new array, or make this call "
                "outside of record()"
            )


@recent
def _described(name, arguments) -> Described:
    average, op, *others = arguments
    if not isinstance(name, str):
        raise wrong("name", name, "a string, or None")
    settings = Settings(op_of(average, op), *others)
    return describe_allreduce(f"allreduce.{name}", settings)._replace(arguments=arguments)


def _allreduce(names, tensors, op, scales, priority, process_set) -> List:
    if is_recording():
        return differentiable.allreduce(names, tensors, op, scales, priority, process_set)
    copies = [collectives.copy(tensor) for tensor in tensors]
    return collectives.allreduce_(names, copies, op, scales, priority, process_set)


def _allgather(name, names, tensors, priority, process_set) -> List:
    rows, alike = collectives.rows_of_all(name, names, tensors, priority, process_set)
    if is_recording():
        outs = differentiable.allgather(names, tensors, rows, priority, process_set)
    else:
        outs = collectives.allgather(names, tensors, rows.sum(axis=0), priority, process_set)
    if not alike:
        collectives.raise_now(outs)
    return outs
