"""DistributedTrainer: gluon.Trainer with gradients averaged over ranks."""

import warnings

import mxnet as mx

from hvdlite.mxnet.compression import NoneCompressor
from hvdlite.mxnet.gradients import Gradients
from hvdlite.mxnet.optimizer import DistributedOptimizer, undistribute
from hvdlite.names import owner_name


class DistributedTrainer(mx.gluon.Trainer):
    """A ``gluon.Trainer`` whose ``step(batch_size)`` applies the gradient of all ranks' batches.

    ``batch_size`` is that of one rank. Between ``allreduce_grads()`` and ``update(batch_size)`` the
    gradients are averages over ranks, so clipping there does what it does in one process.

    The optimizer inside is a plain one: files of ``save_states()`` need no hvdlite to be loaded.

    :param params: a ParameterDict, a dict or a list of Parameters.
    :param optimizer: a name or an ``mx.optimizer.Optimizer``.
    :param compression: one of ``hvd.Compression``.
    :param prefix: names the trainer's tensors; by default trainers are counted in the order in
        which they are made, which must then be the same on every rank.
    """

    def __init__(
        self, params, optimizer, optimizer_params=None, compression=NoneCompressor, prefix=None
    ) -> None:
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages by itself: the optimizer's averaging is dropped",
                stacklevel=2,
            )
            optimizer = undistribute(optimizer)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        self._gradients = Gradients(
            owner_name("trainer") if prefix is None else prefix, compression
        )

    def _allreduce_grads(self) -> None:
        params = dict(enumerate(self._params))
        self._gradients.pair(params)
        trained = [i for i, param in params.items() if param.grad_req != "null"]
        self._gradients.average(trained, [params[i].list_grad()[0] for i in trained])
