"""DistributedOptimizer: an optimizer of Optax, with gradients averaged over ranks."""

from typing import Any, Optional

import jax

from hvdlite.core.agreement import meet
from hvdlite.core.arguments import check_compressor
from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.jax import ops
from hvdlite.training.codecs import Cast, NoneCompressor, compress
from hvdlite.training.plan import reduction_of


class Compression:
    """The values of ``compression=``."""

    none = NoneCompressor

    class fp16(Cast):
        """Send float32 and float64 gradients as float16; sum in float32 and round once."""

        dtype, cast = "float16", staticmethod(lambda array, dtype: array.astype(dtype))
        dtype_of = staticmethod(lambda array: array.dtype.name)


def DistributedOptimizer(
    optimizer: Any, compression: Any = NoneCompressor, op: int = Average,
    gradient_predivide_factor: float = 1.0, process_set: ProcessSet = global_process_set,
    name: Optional[str] = None,
) -> Any:  # fmt: skip
    """Return an optimizer whose ``update`` first averages the gradients over all ranks::

        optimizer = hvd.DistributedOptimizer(optax.adam(1e-3))

    ``update`` works inside and outside ``jit``, in programs of this process only. The state is the
    given optimizer's state, so it is saved and loaded in the same way. To average once in k steps,
    use ``optax.MultiSteps(optimizer, k)``.

    :param optimizer: an optimizer of Optax: a pair of functions ``init`` and ``update``.
    :param compression: Compression.none or fp16, or a class like them.
    :param op: Average, Sum or Adasum.
    :param gradient_predivide_factor: as in PyTorch's DistributedOptimizer, like ``process_set``.
    :param name: the name of the tensors, equal on all ranks; by default the number of optimizers
        that the process made before.
    :raises ValueError: an argument is wrong.
    :raises hvdlite.HvdliteError: at the first update, also while ``jit`` traces it: the ranks have
        made different numbers of optimizers.
    """
    if not (hasattr(optimizer, "_replace") and callable(getattr(optimizer, "update", None))):
        raise ValueError(
            f"expected an optimizer of Optax, such as optax.adam(1e-3), got {type(optimizer)}"
        )
    check_compressor(compression)
    factor = gradient_predivide_factor
    reduction = reduction_of(compression, False, op, factor, process_set=process_set)
    owner, met = name or owner_name("optimizer", process_set), -1

    def update(grads: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        nonlocal met
        if not reduction.is_alone():
            met = meet(owner, met, process_set)
            leaves, structure = jax.tree.flatten(grads)
            sent, restored = compress(leaves, compression)
            reduced = ops.allreduce(sent, owner, None, op, 1 / factor, factor, process_set)
            grads = jax.tree.unflatten(structure, restored(reduced))
        return optimizer.update(grads, state, params, **extra)

    return optimizer._replace(update=update)
