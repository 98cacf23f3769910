"""load_model: a saved model whose optimizer is distributed again."""

from typing import Any, Dict, Optional, Sequence

import keras

from hvdlite.keras.compression import NoneCompressor
from hvdlite.keras.optimizer import DistributedOptimizer


def load_model(
    filepath, custom_optimizers: Optional[Sequence[type]] = None,
    custom_objects: Optional[Dict[str, Any]] = None, compression=NoneCompressor, legacy_opts=False,
):  # fmt: skip
    """Return a model that was saved with a plain or a distributed optimizer, with the latter.

    Its states, such as momentum, are those that were saved.

    :param filepath: what ``keras.models.load_model`` takes.
    :param custom_optimizers: classes of optimizers that are not Keras's own.
    :param custom_objects: by name, other classes and functions of the model.
    :param compression: for ``DistributedOptimizer``.
    :param legacy_opts: ignored: Keras 3 has none.
    :raises ValueError: the model was saved without an optimizer.
    """
    objects = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, {**objects, **(custom_objects or {})})
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"{filepath}: the model was saved without an optimizer: it has no state")
    model.optimizer = DistributedOptimizer(model.optimizer, compression=compression)
    return model
