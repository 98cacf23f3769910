"""Ensures that all ranks have equal parameters of Gluon.

A broadcast or an average makes them equal. A Guard raises an error if they have become unequal.
"""

import types
import weakref
from typing import Iterator, Optional, Sequence

import mxnet as mx

from hvdlite.core.agreement import agree
from hvdlite.core.names import natural_order, owner_name, shape_of_name
from hvdlite.core.process_set import ProcessSet, check_process_set, check_root, global_process_set
from hvdlite.mxnet.ops import allreduce_, broadcast_
from hvdlite.mxnet.sparse import broadcast_rows, is_sparse
from hvdlite.training import guards
from hvdlite.training.plan import agree_on_layers


def broadcast_parameters(
    params, root_rank: int = 0, prefix: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> None:  # fmt: skip
    """Replace the parameters of every rank by those of rank ``root_rank``.

    Returns immediately, but waits for row_sparse weights. If a Parameter has no shape yet, its
    broadcast follows on every rank when the first forward has initialized the Parameter.

    :param params: a dict from names or numbers to Parameters or NDArrays, a ParameterDict, or the
        result of ``net.collect_params()``.
    :param root_rank: the rank whose parameters all ranks get.
    :param prefix: the beginning of the tensors' names; by default it contains the number of the
        call, so all ranks must make these calls in the same order.
    :param process_set: the ranks that take part; other ranks keep their parameters.
    :raises ValueError: ``params`` has another type, ``initialize()`` was not called for a
        Parameter, or ``root_rank`` is not in the set.
    :raises hvdlite.HvdliteError: the ranks have different parameters.
    """
    if not hasattr(params, "items"):
        raise ValueError(
            f"params is a {type(params).__name__}: expected a dict of Parameters or NDArrays, such "
            "as net.collect_params()"
        )
    params = dict(params.items())  # a ParameterDict lacks some of dict's methods
    names, values = list(map(str, params)), list(params.values())
    for name, value in zip(names, values):
        _check(name, value)
    order = natural_order(names)
    if check_process_set(process_set).included():
        check_root(root_rank, process_set)  # first, so that a wrong root changes nothing
    owner = owner_name("parameters", process_set) if prefix is None else prefix
    if not process_set.included():
        return
    stored = [v.stype if isinstance(v, mx.nd.NDArray) else v._stype for v in values]
    facts = [f"({values[i].dtype}, {stored[i]})" for i in order]
    agree_on_layers(owner, [names[i] for i in order], facts, process_set)
    for label, i in enumerate(order):
        _broadcast_value(values[i], root_rank, f"{owner}.{label}", -label, process_set)


def trainer_of(param):
    """Return the Parameter's gluon Trainer, or None. MXNet 2 stores a weak reference to it."""
    trainer = getattr(param, "_trainer", None)
    return trainer() if isinstance(trainer, weakref.ref) else trainer


def _check(name: str, value) -> None:
    if isinstance(value, mx.nd.NDArray):
        return
    if not isinstance(value, mx.gluon.Parameter):
        raise ValueError(
            f"parameter '{name}' is a {type(value).__name__}: expected a Parameter or an NDArray"
        )
    if value._data is None and not value._deferred_init:
        raise ValueError(
            f"parameter '{name}' is not initialized: call initialize() before the broadcast"
        )


def _broadcast_value(value, root_rank: int, name: str, priority: int, process_set) -> None:
    if isinstance(value, mx.nd.NDArray):
        _broadcast_arrays([value], root_rank, name, priority, process_set)
    elif value._data is None:
        _broadcast_when_initialized(value, root_rank, name, priority, process_set)
    else:
        _broadcast_arrays(value._data, root_rank, name, priority, process_set)


def _broadcast_arrays(
    arrays: Sequence, root_rank: int, name: str, priority: int, process_set
) -> None:
    first, *others = arrays
    if is_sparse(first):
        broadcast_rows(first, root_rank, name, process_set).copyto(first)
    else:
        broadcast_(first, root_rank, name, priority, process_set)
    for other in others:
        first.copyto(other)


def _broadcast_when_initialized(
    param, root_rank: int, name: str, priority: int, process_set
) -> None:
    def init_impl(self, *args, **kwargs):
        del self._init_impl  # so that initialize(force_reinit=True) does not broadcast again
        self._init_impl(*args, **kwargs)
        _broadcast_arrays(self._data, root_rank, name, priority, process_set)

    param._init_impl = types.MethodType(init_impl, param)


class Guard(guards.Guard):
    """Checks every few steps that parameters are equal on all ranks, and not NaN or infinite.

    Call ``step()`` between backward and the trainer's step. If ``HVDLITE_GUARD_STEPS`` is N, a
    ``DistributedTrainer`` makes the check itself every N steps. ::

        guard = hvd.Guard(net.collect_params(), every=100)
        ...
        loss.backward()
        guard.step()  # HvdliteError: ... parameter 'dense0_weight' differs between ranks: ...
        trainer.step(batch_size)

    :param params: a ParameterDict, a dict or a list of Parameters, in the same order on every rank.
    :param every: the number of steps between two checks; the first check precedes the first step.
    :param process_set: the ranks that train together; other ranks check nothing.
    :raises ValueError: ``every`` is less than 1.
    """

    def _guarded(self) -> Iterator[guards.Guarded]:
        for param in self._params:
            if param._data is None:  # the first forward has not yet determined the shape
                continue
            gradient = None if param.grad_req == "null" else param.list_grad()[0].asnumpy()
            yield guards.Guarded(param.name, param._data[0].asnumpy(), gradient)


def average_statistics(params) -> None:
    """Replace BatchNorm's running means and variances on every rank by their average over ranks.

    In training each rank computes statistics from its own samples. Call this function before you
    evaluate or save the model; training does not use the statistics. Collective; waits for the
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
