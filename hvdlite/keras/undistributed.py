"""Makes plain optimizers raise an error if Keras has made them from distributed optimizers.

When Keras loads or copies a model, or reads a configuration, Keras makes a plain optimizer from a
distributed optimizer, and each rank would train alone. This module marks the plain optimizer, which
then raises when it is applied in a job of several ranks. Two signs tell that an optimizer was
distributed: the file that ``_Distributed.save_assets`` writes, and the type of the name in the
configuration.
"""

from pathlib import Path
from typing import Any

import keras

from hvdlite.core.topology import is_initialized, rank, size

FILE = "hvdlite.json"  # the file with the optimizer's arguments in a saved model


class Name(str):
    """A string type that marks the configuration of a distributed optimizer."""


class _Undistributed:
    def apply(self, *args, **kwargs):
        _refuse()
        return super().apply(*args, **kwargs)

    def stateless_apply(self, *args, **kwargs):
        _refuse()
        return super().stateless_apply(*args, **kwargs)


def _refuse() -> None:
    if is_initialized() and size() > 1:
        raise RuntimeError(
            f"rank {rank()} of {size()} would train alone: Keras has made a plain optimizer from "
            "a DistributedOptimizer. Load a model with hvd.load_model(), or call model.compile() "
            "with another hvd.DistributedOptimizer; to train alone, call model.compile() with a "
            "new plain optimizer"
        )


def marked(optimizer) -> Any:
    """Make the plain optimizer raise when it is applied in a job of several ranks; return it."""
    kind = type(optimizer)
    if not issubclass(kind, _Undistributed):
        members = {"__module__": kind.__module__}
        optimizer.__class__ = type(kind.__name__, (_Undistributed, kind), members)
    return optimizer


def unmarked(optimizer) -> Any:
    """Undo :func:`marked` for an optimizer that hvdlite will make distributed; return it."""
    if isinstance(optimizer, _Undistributed):
        optimizer.__class__ = type(optimizer).__mro__[2]
    return optimizer


def _load_assets(self, dir_path) -> None:
    if dir_path and Path(dir_path, FILE).exists():
        marked(self)


def _marking(kind: type) -> None:
    """Make ``from_config`` mark plain optimizers made from a DistributedOptimizer's config."""
    from_config = kind.from_config.__func__  # type: ignore[attr-defined]

    def from_config_and_mark(cls, config, custom_objects=None):
        was_distributed = isinstance(config.get("name"), Name) and not hasattr(cls, "_reducer")
        made = from_config(cls, config, custom_objects)
        return marked(made) if was_distributed else made

    kind.from_config = classmethod(from_config_and_mark)  # type: ignore[attr-defined]


keras.optimizers.Optimizer.load_assets = _load_assets
_marking(keras.optimizers.Optimizer)
_marking(keras.optimizers.LossScaleOptimizer)
