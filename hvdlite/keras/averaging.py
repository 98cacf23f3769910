"""The gradients of a Keras optimizer, averaged over ranks: one way for each of Keras's backends."""

from typing import Callable, List, Sequence

import numpy as np
from keras import backend

from hvdlite import numpy as collectives
from hvdlite.training.plan import Reduction


def average(grads: Sequence, owner: str, reduction: Reduction) -> List:
    """Return the gradients reduced over ranks; None stays None.

    :param owner: the name of the optimizer, the same on every rank.
    """
    if backend.backend() == "tensorflow":
        from hvdlite.tensorflow import gradients  # TensorFlow need not be there for the others

        return gradients.average(grads, owner, reduction)
    if not reduction.process_set.included():
        return list(grads)  # as TensorFlow's, too
    present = [i for i, grad in enumerate(grads) if grad is not None]
    sent = [reduction.compression.compress(grads[i]) for i in present]
    names = [f"{owner}.{i}" for i in present]
    reduced = _ON[backend.backend()](_reducer(names, reduction), [each for each, _ in sent])
    results = list(grads)
    for i, each, (_, context) in zip(present, reduced, sent):
        results[i] = reduction.compression.decompress(each, context)
    return results


def _reducer(names: Sequence[str], reduction: Reduction) -> Callable:
    """Return what reduces arrays, all at once."""
    scales = 1 / reduction.predivide_factor, reduction.predivide_factor

    def reduce_(arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
        handles = [
            collectives.allreduce_async(array, name, reduction.op, *scales, reduction.process_set)
            for name, array in zip(names, arrays)
        ]
        return [handle.synchronize() for handle in handles]

    return reduce_


def _on_torch(reduce_: Callable, tensors: Sequence) -> List:
    import torch

    from hvdlite.torch.tensors import check

    for i, tensor in enumerate(tensors):
        check(f"gradient {i}", tensor)
    return [torch.from_numpy(array) for array in reduce_([t.detach().numpy() for t in tensors])]


def _on_jax(reduce_: Callable, tensors: Sequence) -> List:
    import jax
    from jax.experimental import io_callback

    results = [jax.ShapeDtypeStruct(tensor.shape, tensor.dtype) for tensor in tensors]
    return io_callback(
        lambda *arrays: reduce_([np.asarray(array) for array in arrays]),
        results, *tensors, ordered=True,
    )  # fmt: skip


_ON = {"torch": _on_torch, "jax": _on_jax}
