"""DistributedOptimizer for TensorFlow: of Keras, or of ``tf.compat.v1.train`` for sessions."""

import tensorflow as tf

from hvdlite.core.names import owner_name
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.tensorflow.compression import NoneCompressor
from hvdlite.tensorflow.gradients import average, divided
from hvdlite.training.local_layers import average_all_but
from hvdlite.training.plan import check_passes, reduction_of


def DistributedOptimizer(
    optimizer, name=None, use_locking=False, device_dense="", device_sparse="",
    compression=NoneCompressor, sparse_as_dense=False, backward_passes_per_step=1, op=Average,
    gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None,
    process_set=global_process_set, scale_local_gradients=True,
):  # fmt: skip
    """Return the optimizer; it now averages gradients over all ranks before it applies them.

    :param optimizer: of Keras 3, then all is as for ``hvdlite.keras.DistributedOptimizer``; or of
        ``tf.compat.v1.train``, whose ``compute_gradients`` then averages. It stays the same object.
    :param backward_passes_per_step: how many passes are added up before they are sent; with an
        optimizer of ``tf.compat.v1.train`` 1 only.
    :param name: ignored, as ``use_locking``, ``device_dense`` and ``device_sparse`` are.
    :param compression: and all others: as for ``DistributedGradientTape`` and Keras.
    :raises ValueError: an argument that makes no sense; the optimizer is one already.
    """
    shared = {
        "compression": compression, "sparse_as_dense": sparse_as_dense, "op": op,
        "gradient_predivide_factor": gradient_predivide_factor, "num_groups": num_groups,
        "groups": groups, "process_set": process_set,
    }  # fmt: skip
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        from hvdlite.keras.optimizer import DistributedOptimizer as of_keras  # it stands on this

        return of_keras(
            optimizer, backward_passes_per_step=backward_passes_per_step,
            average_aggregated_gradients=average_aggregated_gradients,
            scale_local_gradients=scale_local_gradients, **shared,
        )  # fmt: skip
    if isinstance(optimizer, _Distributed):
        raise ValueError("the optimizer is a DistributedOptimizer already")
    if check_passes(backward_passes_per_step) > 1:
        raise ValueError(
            f"backward_passes_per_step is {backward_passes_per_step}: expected 1 with an optimizer "
            "of tf.compat.v1.train; Keras's optimizers take more"
        )
    kind = type(optimizer)
    optimizer.__class__ = type(kind.__name__, (_Distributed, kind), {})
    optimizer._reduction = reduction_of(**shared)
    optimizer._scale_local = scale_local_gradients
    optimizer._local = set()
    optimizer._owner = owner_name("optimizer")
    return optimizer


class _Distributed:
    """What is added to an optimizer of ``tf.compat.v1.train``."""

    _local: set

    def register_local_var(self, var) -> None:
        """Keep the gradient of a variable that only this rank has."""
        self._local.add(id(var))

    def compute_gradients(self, *args, **kwargs):
        """Return pairs of averaged gradient and variable, as without hvdlite."""
        pairs = super().compute_gradients(*args, **kwargs)
        grads, variables = [grad for grad, _ in pairs], [variable for _, variable in pairs]
        size = self._reduction.process_set.size() if self._scale_local else 1
        results = average_all_but(
            self._local, variables, grads,
            average=lambda grads: average(grads, self._owner, self._reduction),
            divide=lambda grad: divided(grad, size),
        )  # fmt: skip
        return list(zip(results, variables))
