"""gluon's Estimator on many ranks."""

import logging

from mxnet.gluon.contrib.estimator import EpochEnd, TrainBegin

from hvdlite.core import topology
from hvdlite.mxnet.evaluation import allreduce_metric, average_statistics
from hvdlite.mxnet.optimizer import DistributedOptimizer
from hvdlite.mxnet.parameters import broadcast_parameters
from hvdlite.mxnet.trainer import DistributedTrainer


class DistributedHandler(TrainBegin, EpochEnd):
    """An event handler that lets ``Estimator.fit`` train on all ranks as in one process.

    ::

        trainer = hvd.DistributedTrainer(net.collect_params(), "adam")
        estimator = Estimator(net, loss, trainer=trainer, train_metrics=mx.metric.Accuracy())
        sampler = hvd.DistributedSampler(len(images))
        held_back = hvd.DistributedSampler(len(others), shuffle=False, even=False)
        estimator.fit(
            DataLoader(images, batch_size, sampler=sampler),
            DataLoader(others, batch_size, sampler=held_back),
            epochs=10,
            event_handlers=[hvd.DistributedHandler()],
        )

    All ranks begin with the weights of rank 0. At the end of an epoch the metrics of training and
    validation cover the data of all ranks and are equal on every rank, also in a later
    ``estimator.evaluate()``. So handlers that stop early or keep the best model decide the same on
    all ranks. BatchNorm's running statistics are averaged before validation. Only rank 0 logs.
    Give handlers that write files, such as MXNet's CheckpointHandler, to rank 0 only.

    :param checkpoint: a ``hvd.Checkpoint``: ``fit`` loads the newest one, counts its epochs as part
        of ``epochs``, and saves each epoch.
    :param sampler: a ``hvd.DistributedSampler`` or a list of them, whose ``epoch`` a resumed run
        sets.
    :raises ValueError: in ``fit``: its trainer averages no gradients, or no epoch is left to do.
    """

    priority = (
        -1500
    )  # after the update of the weights, before validation and all readers of metrics

    def __init__(self, checkpoint=None, sampler=None) -> None:
        self._checkpoint = checkpoint
        self._samplers = sampler if isinstance(sampler, (list, tuple)) else [sampler]
        self._epoch = 0

    def train_begin(self, estimator, *args, **kwargs) -> None:
        """Make weights, and the epoch to begin with, equal on all ranks."""
        _check_trainer(estimator.trainer)
        if topology.rank() != 0:
            estimator.logger.setLevel(logging.WARNING)
        _sum_in_validation(estimator)
        broadcast_parameters(estimator.net.collect_params())
        self._epoch = 0
        if self._checkpoint is not None:
            self._resume(estimator)

    def epoch_end(self, estimator, *args, **kwargs) -> bool:
        """Sum metrics and average statistics over all ranks; save a checkpoint."""
        self._epoch += 1
        average_statistics(estimator.net.collect_params())
        _sum(estimator.train_metrics)
        if self._checkpoint is not None:
            self._checkpoint.save(self._epoch)
        return False

    def _resume(self, estimator) -> None:
        if not estimator.max_epoch:
            raise ValueError("checkpoints count epochs: call fit(epochs=...), not fit(batches=...)")
        self._epoch, _ = self._checkpoint.load()
        if self._epoch >= estimator.max_epoch:
            raise ValueError(
                f"the checkpoint has done {self._epoch} epochs: nothing is left of the "
                f"{estimator.max_epoch} that fit() shall do"
            )
        estimator.max_epoch -= self._epoch  # MXNet's handlers count from here
        for sampler in self._samplers:
            if sampler is not None:
                sampler.epoch = self._epoch


class _SumAtEnd(EpochEnd):
    """Sums metrics over all ranks before they are logged."""

    priority = DistributedHandler.priority

    def __init__(self, metrics) -> None:
        self._metrics = metrics

    def epoch_end(self, estimator, *args, **kwargs) -> bool:
        _sum(self._metrics)
        return False


def _check_trainer(trainer) -> None:
    if isinstance(trainer, DistributedTrainer):
        return
    if not isinstance(trainer.optimizer, DistributedOptimizer):
        raise ValueError(
            "the Estimator's trainer averages no gradients: make it a hvd.DistributedTrainer"
        )


def _sum_in_validation(estimator) -> None:
    """Sum metrics in ``evaluate``: ``fit`` calls it without handlers, so wrap its defaults."""
    prepare = estimator._prepare_default_validation_handlers
    if hasattr(prepare, "sums"):  # by an earlier fit()
        return

    def prepare_and_sum(event_handlers):
        return [_SumAtEnd(estimator.val_metrics), *prepare(event_handlers)]

    vars(prepare_and_sum)["sums"] = True
    estimator._prepare_default_validation_handlers = prepare_and_sum


def _sum(metrics) -> None:
    for metric in metrics:
        vars(metric).update(vars(allreduce_metric(metric, f"estimator.{metric.name}")))
