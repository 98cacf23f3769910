"""Collectives on Keras's values (tensors of its backend, NumPy arrays, numbers), outside graphs."""

from typing import Optional, Sequence

import numpy as np
from keras import backend, ops

from hvdlite import numpy as collectives
from hvdlite.core import progress
from hvdlite.core.arguments import check_compressor, op_of
from hvdlite.core.collectives import refuse_mask
from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, check_root, global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.training.codecs import Cast, NoneCompressor


class FP16Compressor(Cast):
    """Send float32 and float64 gradients as float16; sum in float32 and round once."""

    dtype, cast = "float16", staticmethod(ops.cast)
    dtype_of = staticmethod(lambda tensor: backend.standardize_dtype(tensor.dtype))


class Compression:
    """The values of ``compression=``."""

    none = NoneCompressor
    fp16 = FP16Compressor


def _array(value) -> np.ndarray:
    refuse_mask(value)
    if hasattr(value, "nested_row_splits"):
        raise ValueError(
            "the tensor is ragged, and zeros would be added to it: expected a dense one, such as "
            "tensor.to_tensor(); or send tensor.flat_values and its row_splits apart"
        )
    if isinstance(value, (float, list)):
        return np.asarray(value, np.float32)  # float32, as in the tensors of the backends
    return np.asarray(ops.convert_to_numpy(value) if ops.is_tensor(value) else value)


def allreduce(
    value, name: Optional[str] = None, average: Optional[bool] = None, prescale_factor=1.0,
    postscale_factor=1.0, op: Optional[int] = None, compression=NoneCompressor,
):  # fmt: skip
    """Return ``op`` over all ranks of ``value``, by default the average, as a tensor.

    :param value: a tensor, an array or a number, of the same shape and dtype on every rank.
    :param name: the same on every rank; by default the calling line of the script.
    :param average: True for Average, False for Sum; ``op`` has more choices.
    :param prescale_factor: and ``postscale_factor``: factors before and after the reduction.
    :param compression: Compression.none or fp16, or a class like them.
    :raises hvdlite.HvdliteError: the ranks disagree, one has left, or the transport failed.
    """
    check_compressor(compression)
    sent, context = compression.compress(ops.convert_to_tensor(_array(value)))
    op, scales = op_of(average, op), (prescale_factor, postscale_factor)
    reduced = collectives.allreduce(_array(sent), name, op, *scales)
    return compression.decompress(ops.convert_to_tensor(reduced), context)


def allgather(value, name: Optional[str] = None):
    """Return the values of all ranks joined along the first dimension, as a tensor.

    :param value: like all arguments as for :func:`allreduce`, but the first dimension may differ.
    """
    return ops.convert_to_tensor(collectives.allgather(_array(value), name))


def broadcast(value, root_rank: int, name: Optional[str] = None):
    """Return rank ``root_rank``'s value, as a tensor.

    :param value: and ``name``, and errors: as for :func:`allreduce`.
    """
    return ops.convert_to_tensor(collectives.broadcast(_array(value), root_rank, name))


def reducescatter(value, name: Optional[str] = None, op: int = Average):
    """Return this rank's rows of what :func:`allreduce` would return, as a tensor.

    :param value: all arguments and errors are as for :func:`allreduce`.
    """
    return ops.convert_to_tensor(collectives.reducescatter(_array(value), name, op))


def broadcast_variables(
    variables: Sequence, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Replace variables of Keras on every rank by those of rank ``root_rank``.

    :param variables: such as ``model.variables``, in the same order on every rank.
    :param process_set: the ranks that take part.
    :raises hvdlite.HvdliteError: the ranks disagree on a shape or dtype; one has left.
    """
    check_root(root_rank, process_set)  # raises before anything is counted or sent
    owner = owner_name("variables", process_set)
    arrays = [ops.convert_to_numpy(variable) for variable in variables]
    with progress.of_broadcast(root_rank, [array.nbytes for array in arrays]):
        handles = [
            collectives.broadcast_async(_movable(array), root_rank, f"{owner}.{i}", process_set)
            for i, array in enumerate(arrays)
        ]
        for variable, array, handle in zip(variables, arrays, handles):
            variable.assign(handle.synchronize().view(array.dtype))


def _movable(array: np.ndarray) -> np.ndarray:
    """Return the array in a dtype that the C library has (JAX's seeds are uint32)."""
    return array.view(f"i{array.itemsize}") if array.dtype.kind == "u" else array


def broadcast_global_variables(root_rank: int) -> None:
    """Raise an error that names the replacement: Keras 3 has no global variables.

    :param root_rank: ignored.
    :raises RuntimeError: always.
    """
    raise RuntimeError(
        "Keras 3 has no global variables: use hvd.broadcast_variables(model.variables, root_rank), "
        "or hvd.callbacks.BroadcastGlobalVariablesCallback(root_rank)"
    )
