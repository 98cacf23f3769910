"""Metrics over the samples of all ranks."""

import copy
from typing import Any, Dict, List, Optional

import mxnet as mx
import numpy as np

from hvdlite.core.agreement import agree
from hvdlite.core.names import tensor_name
from hvdlite.core.objects import allgather_object
from hvdlite.mxnet.push import IS_MXNET_1

_metric = mx.metric if IS_MXNET_1 else mx.gluon.metric

_COUNTS = ("num_inst", "sum_metric", "global_num_inst", "global_sum_metric")
_MOMENTS = ("_label_nums", "_mean_l", "_sse_l", "_pred_nums", "_mean_p", "_sse_p", "_conv")
_MATRICES = ("lcm", "gcm")


def allreduce_metric(metric, name: Optional[str] = None):
    """Return the metric over the samples of all ranks; ``metric`` does not change.

    The function adds up sums and counts, so ranks may have different numbers of samples, or none.
    Collective. All ranks get bitwise equal values::

        for images, labels in part_of_this_rank:
            metric.update(labels, net(images))
        print(hvd.allreduce_metric(metric).get())

    :param metric: a metric of ``mx.metric``, a CompositeEvalMetric, or a metric of your own class
        that keeps all its sums and counts in ``sum_metric`` and ``num_inst``.
    :param name: the same on every rank; by default the calling line of the script.
    :raises ValueError: your metric overrides ``reset()``, so the metric keeps other values, too.
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


def _leaves(metric) -> List[Any]:
    if isinstance(metric, _metric.CompositeEvalMetric):
        return [leaf for child in metric.metrics for leaf in _leaves(child)]
    owner = next(kind for kind in type(metric).__mro__ if "reset" in vars(kind))
    if owner.__module__ != _metric.__name__:
        raise ValueError(
            f"the metric {type(metric).__name__} has its own reset(), so it may keep values "
            "besides sum_metric and num_inst, which hvdlite can't add up: gather the values with "
            "hvd.allgather_object"
        )
    return [metric]


def _classified(metric):
    """Return the object in which F1 or MCC counts true and false positives; None for others."""
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
    """Convert MXNet 2's ``mx.np`` array to a number, or to a NumPy array of counts per class."""
    if not isinstance(value, mx.nd.NDArray):
        return value
    value = value.asnumpy()
    return value if value.ndim else value.item()


def _as_mxnet_counts(value):
    """Convert a NumPy array with a count per class back to MXNet 2's ``mx.np`` array."""
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
        counted = [state[name] for state in states]
        # None means that a rank has counted nothing yet
        values = [value for value in counted if value is not None]
        if values and name.endswith(("positives", "negatives")):
            setattr(classified, name, _as_mxnet_counts(sum(values)))
        elif values:  # MXNet 2's metrics also store the number of classes: equal, so not summed
            setattr(classified, name, values[0])
    averages = getattr(metric, "average", ""), getattr(metric, "_average", "")
    if classified.total_examples and ("micro" in averages or not IS_MXNET_1):
        metric.update([], [])  # makes MXNet compute sum_metric from the new counts


def _join_matrices(metric, states) -> None:
    """Add confusion matrices, which have different sizes: one row per class seen on a rank."""
    rows = max(len(state["lcm"]) for state in states)
    metric.k = rows
    for name in filter(states[0].__contains__, _MATRICES):
        padded = [np.pad(s[name], (0, rows - len(s[name]))) for s in states]
        setattr(metric, name, _as_mxnet_counts(sum(padded)))


def _join_moments(states) -> Dict[str, float]:
    """Combine means and sums of squared deviations (Chan, Golub and LeVeque 1979, eq. 2.1)."""
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
