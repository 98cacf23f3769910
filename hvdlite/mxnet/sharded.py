"""ShardedTrainer: DistributedTrainer with weights once on each host, and states once in the job."""

from typing import Collection, List

import mxnet as mx

from hvdlite.core import topology
from hvdlite.core.reduce_ops import Average
from hvdlite.mxnet.host_updater import HostUpdater
from hvdlite.mxnet.states import whole_states
from hvdlite.mxnet.trainer import DistributedTrainer


class ShardedTrainer(DistributedTrainer):
    """A ``DistributedTrainer`` that updates one copy of the weights a host, each rank its part.

    From the first ``step`` on the trained weights, and the optimizer's states, lie in memory that
    all ranks of a host map. A rank's parameters are views of it. Each rank sums its part of the
    gradients and updates that part at once, so a step does the work of one update a host, where
    ``DistributedTrainer`` does it on every rank. Training is the same, bit for bit.

    Several hosts share the states of weights of 64 KiB or more, with SGD, NAG and Adam: each has
    some, updates those weights by the sums over all ranks and sends them to the others. More than
    two hosts add in another order than ``DistributedTrainer``, so the last bit may differ.

    What differs for a script:

    * At the first step the weights of each host become those of its lowest rank; start with equal
      ones, as ever: ``hvd.broadcast_parameters``.
    * Write to weights (``load_parameters``, ``set_data``) on all ranks of a host, the same values.
    * After ``step`` gradients are this rank's own, or averages; ``allreduce_grads()`` and
      ``update(batch_size)`` make them averages, for clipping between the two.
    * On several hosts all ranks call ``save_states``.
    * No rank may call ``hvd.join()`` during a step.

    Parameters stay private, as with ``DistributedTrainer``, that are frozen, sparse or on several
    contexts; all do if the ranks of a host can't share memory. Optimizers that may need whole
    arrays, such as LARS and LAMB, get them: each array is updated by one rank.

    :param params: as all parameters for ``DistributedTrainer``.
    :param optimizer: a name or an ``mx.optimizer.Optimizer``.
    :param optimizer_params: a dict of arguments for an optimizer given by its name.
    :param gradient_predivide_factor: a divisor before the sum over ranks, for small dtypes.
    :param prefix: names the trainer's tensors.
    :param num_groups: the number of groups of gradients; 0: groups of 1 MiB or more.
    :param op: ``hvd.Average`` or ``hvd.Sum``.
    :param backward_passes_per_step: how many calls of ``step`` make one update.
    :param sparse_as_dense: send row_sparse gradients whole.
    :raises hvdlite.HvdliteValueError: the optimizer is Nadam, whose update depends on the number of
        calls.
    """

    def __init__(
        self, params, optimizer, optimizer_params=None, gradient_predivide_factor=1.0, prefix=None,
        num_groups=0, *, op=Average, backward_passes_per_step=1, sparse_as_dense=False,
    ) -> None:  # fmt: skip
        super().__init__(
            params, optimizer, optimizer_params, prefix=prefix, num_groups=num_groups, op=op,
            gradient_predivide_factor=gradient_predivide_factor, sparse_as_dense=sparse_as_dense,
            backward_passes_per_step=backward_passes_per_step,
        )  # fmt: skip
        self._sums = False  # in step(): the update sums the gradients that it can

    @property
    def host_parameters(self) -> List[str]:
        """Names of the parameters that exist once on each host, from the first step on."""
        updater = self._updaters[0]
        shared = isinstance(updater, HostUpdater)
        return [p.name for i, p in enumerate(self._params) if shared and updater.has(i)]

    def save_states(self, fname) -> None:
        """Save the optimizer's states as Gluon does: the file of one process.

        On several hosts all ranks call it, because each host has some of the states.

        :param fname: where this rank writes; None: this rank takes part and writes nothing.
        """
        if fname is None:
            whole_states(self)
        else:
            super().save_states(fname)

    def rejoin(self) -> None:
        updater = self._updaters[0]
        if isinstance(updater, HostUpdater):
            updater.unshare(dict(enumerate(self._params)))
        super().rejoin()

    def step(self, batch_size, ignore_stale_grad=False) -> None:
        """Sum the gradients over ranks and update the parameters; as for DistributedTrainer."""
        # Averages are needed to tell what is stale, or overflows, on any rank.
        self._sums = not ignore_stale_grad and not hasattr(self, "_amp_loss_scaler")
        try:
            super().step(batch_size, ignore_stale_grad)
        finally:
            self._sums = False

    def _init_optimizer(self, optimizer, optimizer_params) -> None:
        super()._init_optimizer(optimizer, optimizer_params)
        if len(self._contexts) == 1 and topology.is_initialized():
            self._updaters: List[mx.optimizer.Updater] = [HostUpdater(self._optimizer)]

    def _pair(self) -> bool:
        first = super()._pair()
        updater = self._updaters[0]
        if first and isinstance(updater, HostUpdater):
            params = dict(enumerate(self._params))
            order = self._gradients.in_order(params)
            updater.share({i: params[i] for i in order}, self._gradients)
        return first

    def _left_out(self) -> Collection[int]:
        updater = self._updaters[0]
        if not self._sums or not isinstance(updater, HostUpdater):
            return super()._left_out()
        return {*super()._left_out(), *updater.fused()}

    def _update(self, ignore_stale_grad=False) -> None:
        updater = self._updaters[0]
        if isinstance(updater, HostUpdater):
            updater.sums = self._sums
        super()._update(ignore_stale_grad)
