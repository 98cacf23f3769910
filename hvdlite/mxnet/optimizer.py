"""DistributedOptimizer: any MXNet optimizer, fed with gradients averaged over ranks."""

import copy

import mxnet as mx

from hvdlite.mxnet.compression import NoneCompressor
from hvdlite.mxnet.gradients import Gradients
from hvdlite.names import owner_name


class DistributedOptimizer:
    """An optimizer that averages each gradient over all ranks before it updates the weight.

    For ``gluon.Trainer(params, DistributedOptimizer(opt), kvstore=None)``, for Module, or alone::

        opt = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)
        trainer = gluon.Trainer(net.collect_params(), hvd.DistributedOptimizer(opt), kvstore=None)

    ``trainer.step(batch_size)`` takes the batch size of one rank. The average happens inside the
    update: to clip averaged gradients in between, use :class:`DistributedTrainer`.

    It *is* the optimizer: an instance of a subclass of its class that shares its attributes, so
    that learning rates, multipliers, schedulers, ``rescale_grad`` and states work as they do
    without hvdlite, also after ``save_states`` and ``load_states``.

    :param optimizer: an ``mx.optimizer.Optimizer``.
    :param compression: one of ``hvd.Compression``.
    """

    def __new__(cls, optimizer, compression=NoneCompressor):
        if isinstance(optimizer, DistributedOptimizer) or not isinstance(
            optimizer, mx.optimizer.Optimizer
        ):
            raise ValueError(f"expected a plain MXNet optimizer, got {type(optimizer).__name__}")
        return _distribute(optimizer, Gradients(owner_name("optimizer"), compression))

    def __init__(self, *args, **kwargs) -> None:
        """Do nothing: the attributes are those of the optimizer that was given."""

    def update(self, index, weight, grad, state):
        """Average ``grad`` over ranks, then update ``weight``; all but state may be lists."""
        self._average(index, grad)
        super().update(index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        """Do the same with float32 master weights where the optimizer keeps them."""
        self._average(index, grad)
        object.__setattr__(self, "_averaged", True)  # most optimizers call self.update() from here
        try:
            super().update_multi_precision(index, weight, grad, state)
        finally:
            object.__setattr__(self, "_averaged", False)

    def _average(self, index, grad) -> None:
        if self.__dict__.get("_averaged"):
            return
        if self.param_dict:
            self._gradients.pair(self.param_dict)
        if isinstance(index, (list, tuple)):
            self._gradients.average(index, grad)
        else:
            self._gradients.average([index], [grad])

    def __copy__(self):
        return self.__deepcopy__({})

    def __deepcopy__(self, memo):
        """Return a copy under a name of its own: both may be at work at the same time."""
        plain = copy.deepcopy(undistribute(self), memo)
        return DistributedOptimizer(plain, self._gradients.compression)

    def __reduce__(self):
        plain = undistribute(self)
        return _restore, (
            type(plain),
            plain.__getstate__(),
            self._gradients.owner,
            self._gradients.compression,
        )


def _distribute(optimizer, gradients: Gradients) -> DistributedOptimizer:
    kind = type(optimizer)
    distributed = object.__new__(type(kind.__name__, (DistributedOptimizer, kind), {}))
    distributed.__dict__ = optimizer.__dict__  # shared, both ways
    distributed._gradients = gradients
    return distributed


def undistribute(optimizer: DistributedOptimizer):
    """Return the plain optimizer, with the attributes of the distributed one."""
    kind = type(optimizer).__mro__[2]
    plain = object.__new__(kind)
    plain.__dict__ = {
        k: v for k, v in optimizer.__dict__.items() if k not in ("_gradients", "_averaged")
    }
    return plain


def _restore(kind, state, owner, compression) -> DistributedOptimizer:
    """Rebuild an unpickled optimizer; under its old name, which is the same on every rank."""
    plain = object.__new__(kind)
    plain.__setstate__(state)
    return _distribute(plain, Gradients(owner, compression))
