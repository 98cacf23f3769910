"""Metrics and BatchNorm statistics of a model, over all ranks; gluon's Estimator on them."""

import copy
import logging
from typing import Any, Dict, List, Optional

import mxnet as mx
import numpy as np
from mxnet.gluon.contrib.estimator import EpochEnd, TrainBegin

from hvdlite.core import topology
from hvdlite.core.names import natural_order, shape_of_name, tensor_name
from hvdlite.core.objects import agree, allgather_object
from hvdlite.mxnet.ops import allreduce_
from hvdlite.mxnet.optimizer import DistributedOptimizer
from hvdlite.mxnet.parameters import broadcast_parameters
from hvdlite.mxnet.push import IS_MXNET_1
from hvdlite.mxnet.trainer import DistributedTrainer

_metric = mx.metric if IS_MXNET_1 else mx.gluon.metric

_COUNTS = ("num_inst", "sum_metric", "global_num_inst", "global_sum_metric")
_MOMENTS = ("_label_nums", "_mean_l", "_sse_l", "_pred_nums", "_mean_p", "_sse_p", "_conv")
_MATRICES = ("lcm", "gcm")


def allreduce_metric(metric, name: Optional[str] = None):
    """Return the metric over the samples of all ranks; ``metric`` stays as it is.

    Adds up sums and counts, so ranks may have seen different numbers of samples, or none.
    Collective; every rank gets the same bits::

        for images, labels in part_of_this_rank:
            metric.update(labels, net(images))
        print(hvd.allreduce_metric(metric).get())

    :param metric: one of ``mx.metric``, a CompositeEvalMetric of several, or a class of your own
        that keeps what it counts in ``sum_metric`` and ``num_inst``.
    :param name: pairs the calls; by default the line of the script that calls.
    :raises ValueError: the metric has a ``reset()`` of its own, so it keeps something else.
    :raises hvdlite.HvdliteError: the ranks have different metrics.
    """
    total = copy.deepcopy(metric)
    leaves = _leaves(total)
    name = tensor_name("metric", name)
    agree(
        name,
        [f"{type(leaf).__name__} '{leaf.name}'" for leaf in leaves],
        remedy="Use the same metrics on every rank.",
    )
    everyone = allgather_object([_state(leaf) for leaf in leaves], name)
    for leaf, states in zip(leaves, zip(*everyone)):
        _join(leaf, states)
    return total


def average_statistics(params) -> None:
    """Replace BatchNorm's running means and variances on every rank by their average over ranks.

    Each rank collects its own statistics in training. After this call all ranks have the same
    model, to evaluate or to save. (Training itself does not use them.) Collective; waits for the
    result.

    :param params: what ``net.collect_params()`` returns.
    :raises hvdlite.HvdliteError: the ranks have different networks.
    """
    kept = {name: p for name, p in params.items() if not p._differentiable and p._data is not None}
    names, values = list(kept), list(kept.values())
    order = natural_order(names)
    agree("statistics", [f"{shape_of_name(names[i])} {values[i].shape}" for i in order])
    for label, i in enumerate(order):
        allreduce_(values[i].data(), name=f"statistics.{label}", priority=-label)
    for value in values:
        value.data().wait_to_read()


def _leaves(metric) -> List[Any]:
    if isinstance(metric, _metric.CompositeEvalMetric):
        return [leaf for child in metric.metrics for leaf in _leaves(child)]
    owner = next(kind for kind in type(metric).__mro__ if "reset" in vars(kind))
    if owner.__module__ != _metric.__name__:
        raise ValueError(
            f"{type(metric).__name__}.reset() shows that the metric keeps more than sum_metric and "
            "num_inst, which hvdlite can't add up: use hvd.allgather_object on what it keeps"
        )
    return [metric]


def _classified(metric):
    """Return the counts of true and false positives and negatives behind F1 and MCC, if any."""
    if isinstance(metric, (_metric.F1, _metric.MCC)):
        return getattr(metric, "metrics", None) or metric._metrics
    return None


def _state(metric) -> Dict[str, Any]:
    kept = (*_COUNTS, *_MOMENTS, *_MATRICES)
    state = {name: value for name, value in vars(metric).items() if name in kept}
    if _classified(metric):
        state.update(vars(_classified(metric)))
    return {name: _as_numpy(value) for name, value in state.items()}


def _as_numpy(value):
    """Turn a count of MXNet 2, an ``mx.np`` array, into a number, or a NumPy array of classes."""
    if not isinstance(value, mx.nd.NDArray):
        return value
    value = value.asnumpy()
    return value if value.ndim else value.item()


def _as_mxnet_counts(value):
    """Turn a NumPy array of classes back into the array that MXNet 2 counts in."""
    return value if IS_MXNET_1 or np.ndim(value) == 0 else mx.np.array(value, dtype="float64")


def _join(metric, states) -> None:
    """Replace the counts of the metric by the counts of all ranks."""
    if "_conv" in states[0]:
        vars(metric).update(_join_moments(states))
    if isinstance(metric, _metric.PCC):
        _join_matrices(metric, states)
    counts = {name: sum(state[name] for state in states) for name in _COUNTS if name in states[0]}
    vars(metric).update(counts)
    if _classified(metric):
        _join_classified(metric, states)


def _join_classified(metric, states) -> None:
    classified = _classified(metric)
    for name in vars(classified):
        values = [
            state[name] for state in states if state[name] is not None
        ]  # None: nothing counted yet
        if values and name.endswith(("positives", "negatives")):
            setattr(classified, name, _as_mxnet_counts(sum(values)))
        elif values:  # MXNet 2 keeps the kind and number of classes there
            setattr(classified, name, values[0])
    averages = getattr(metric, "average", ""), getattr(metric, "_average", "")
    if classified.total_examples and ("micro" in averages or not IS_MXNET_1):
        metric.update([], [])  # it computes sum_metric from these counts


def _join_matrices(metric, states) -> None:
    """Add confusion matrices; each has one row for each class that its rank has seen."""
    rows = max(len(state["lcm"]) for state in states)
    metric.k = rows
    for name in filter(states[0].__contains__, _MATRICES):
        padded = [np.pad(s[name], (0, rows - len(s[name]))) for s in states]
        setattr(metric, name, _as_mxnet_counts(sum(padded)))


def _join_moments(states) -> Dict[str, float]:
    """Join means, and sums of squares around them (Chan, Golub and LeVeque 1979, eq. 2.1)."""
    n, mean_l, sse_l, _, mean_p, sse_p, conv = (0,) * len(_MOMENTS)
    for state in states:
        m, their_l, their_sse_l, _, their_p, their_sse_p, their_conv = map(state.get, _MOMENTS)
        if m == 0:
            continue
        d_l, d_p, weight = their_l - mean_l, their_p - mean_p, n * m / (n + m)
        sse_l += their_sse_l + d_l * d_l * weight
        sse_p += their_sse_p + d_p * d_p * weight
        conv += their_conv + d_l * d_p * weight
        mean_l += d_l * m / (n + m)
        mean_p += d_p * m / (n + m)
        n += m
    return dict(zip(_MOMENTS, (n, mean_l, sse_l, n, mean_p, sse_p, conv)))


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
