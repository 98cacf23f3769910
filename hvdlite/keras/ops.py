"""Collectives on tensors of Keras's backend, NumPy arrays and numbers; not inside graphs."""

from typing import Optional, Sequence

import numpy as np
from keras import backend, ops

from hvdlite import numpy as collectives
from hvdlite.core import progress
from hvdlite.core.arguments import check_compressor, op_of, refuse_mask
from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, check_root, global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.training.codecs import Cast, NoneCompressor


class FP16Compressor(Cast):
    """Send float32 and float64 gradients as float16; add in float32 and round the sum once."""

    dtype, cast = "float16", staticmethod(ops.cast)
    dtype_of = staticmethod(lambda tensor: backend.standardize_dtype(tensor.dtype))


class Compression:
    """The values for the argument ``compression``."""

    none = NoneCompressor
    fp16 = FP16Compressor


def _array(value) -> np.ndarray:
    refuse_mask(value)
    if hasattr(value, "nested_row_splits"):
        raise ValueError(
            "expected a dense tensor, got a ragged one: pass tensor.to_tensor(), which fills rows "
            "up with zeros, or send tensor.flat_values and tensor.row_splits in two calls"
        )
    if isinstance(value, (float, list)):
        return np.asarray(value, np.float32)  # the backends also convert numbers to float32
    return np.asarray(ops.convert_to_numpy(value) if ops.is_tensor(value) else value)


def allreduce(
    value, name: Optional[str] = None, average: Optional[bool] = None, prescale_factor=1.0,
    postscale_factor=1.0, op: Optional[int] = None, compression=NoneCompressor,
):  # fmt: skip
    """Reduce ``value`` over all ranks with ``op``, by default to the average; return a tensor.

    :param value: a tensor, an array or a number, of the same shape and dtype on every rank.
    :param name: the same on every rank; by default the calling line of the script.
    :param average: True for Average, False for Sum; ``op`` has more choices.
    :param prescale_factor: a factor before the reduction; ``postscale_factor``: after it.
    :param compression: Compression.none or fp16, or a class with the same methods.
    :raises hvdlite.HvdliteError: ranks disagree, a rank has left, or the transport failed.
    """
    check_compressor(compression)
    sent, context = compression.compress(ops.convert_to_tensor(_array(value)))
    op, scales = op_of(average, op), (prescale_factor, postscale_factor)
    reduced = collectives.allreduce(_array(sent), name, op, *scales)
    return compression.decompress(ops.convert_to_tensor(reduced), context)


def allgather(value, name: Optional[str] = None):
    """Return a tensor of the values of all ranks, joined along the first dimension.

    :param value: as for :func:`allreduce`, but the first dimension may differ.
    :param name: as for :func:`allreduce`.
    """
    return ops.convert_to_tensor(collectives.allgather(_array(value), name))


def broadcast(value, root_rank: int, name: Optional[str] = None):
    """Return rank ``root_rank``'s value as a tensor.

    :param value: see :func:`allreduce`, also for ``name`` and the errors.
    """
    return ops.convert_to_tensor(collectives.broadcast(_array(value), root_rank, name))


def reducescatter(value, name: Optional[str] = None, op: int = Average):
    """Return this rank's rows of the tensor that :func:`allreduce` would return.

    :param value: see :func:`allreduce`, also for the other arguments and the errors.
    """
    return ops.convert_to_tensor(collectives.reducescatter(_array(value), name, op))


def broadcast_variables(
    variables: Sequence, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Overwrite Keras variables on every rank with the values of rank ``root_rank``.

    :param variables: such as ``model.variables``, in the same order on every rank.
    :param process_set: the ranks that take part.
    :raises hvdlite.HvdliteError: ranks disagree on a shape or dtype, or a rank has left.
    """
    check_root(root_rank, process_set)  # first, so that a wrong root changes nothing
    owner = owner_name("variables", process_set)
    arrays = [ops.convert_to_numpy(variable) for variable in variables]
    with progress.of_broadcast(root_rank, [array.nbytes for array in arrays]):
        handles = [
            collectives.broadcast_async(array, root_rank, f"{owner}.{i}", process_set)
            for i, array in enumerate(arrays)
        ]
        for variable, handle in zip(variables, handles):
            variable.assign(handle.synchronize())


def broadcast_global_variables(root_rank: int) -> None:
    """Raise an error that names the replacement: Keras 3 has no global variables.

    :param root_rank: ignored.
    :raises RuntimeError: always.
    """
    raise RuntimeError(
        "Keras 3 has no global variables: use hvd.broadcast_variables(model.variables, root_rank), "
        "or hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank)"
    )
