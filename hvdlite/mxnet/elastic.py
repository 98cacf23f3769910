"""GluonState: keeps Gluon networks and trainers in the state of an elastic training."""

from typing import Any

import mxnet as mx

from hvdlite.elastic.state import ObjectState, Part
from hvdlite.mxnet.optimizer import DistributedOptimizer
from hvdlite.mxnet.states import gradients_of, pack_states, unpack_states, whole_states
from hvdlite.mxnet.trainer import DistributedTrainer


class GluonState(ObjectState):
    """An ``ObjectState`` whose values may also be networks and trainers.

    ::

        state = hvd.elastic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0)

    The state keeps the parameters and running statistics of a Block, and the optimizer's states,
    step counts and learning rate of a Trainer. ``sync`` makes them equal on all ranks, so
    ``hvd.broadcast_parameters`` is not needed.

    :raises ValueError: a parameter is sparse, or has no value yet because no forward has run.
    """

    def _part(self, value) -> Part:
        if isinstance(value, mx.gluon.Block):
            return _Parameters(value)
        if isinstance(value, mx.gluon.Trainer):
            return _Trainer()
        return super()._part(value)

    def save(self) -> None:
        mx.nd.waitall()
        super().save()

    def restore(self) -> None:
        # Read the errors of all failed operations: MXNet raises each error once, here or later.
        for _ in range(100):
            try:
                mx.nd.waitall()
                break
            except mx.MXNetError:
                continue
        super().restore()


MXNetState = GluonState


class _Parameters(Part):
    """Saves and restores a Block's parameters, and its accumulated gradients (grad_req "add")."""

    def __init__(self, block) -> None:
        for param in block.collect_params().values():
            if param._data is None:
                raise ValueError(
                    f"parameter '{param.name}' has no value yet: initialize() the net, and run one "
                    "forward before the state is made"
                )
            if param._stype != "default":
                raise ValueError(
                    f"parameter '{param.name}' is {param._stype}: elastic training takes only "
                    "dense weights: make the parameter with stype='default'"
                )

    def save(self, value) -> Any:
        return [
            (param.data().asnumpy(), param.grad().asnumpy() if param.grad_req == "add" else None)
            for param in value.collect_params().values()
        ]

    def restore(self, value, saved) -> Any:
        for param, (data, grad) in zip(value.collect_params().values(), saved):
            for array in param.list_data():
                _write(array, data)
            for array in () if grad is None else param.list_grad():
                _write(array, grad)
        return value


class _Trainer(Part):
    """Saves and restores a Trainer's states."""

    def save(self, value) -> Any:
        return pack_states(value, whole_states(value))

    def restore(self, value, saved) -> Any:
        unpack_states(value, saved)
        return value

    def _gradients(self, value) -> Any:
        return gradients_of(value)

    def reset(self, value) -> None:
        gradients = gradients_of(value)
        if isinstance(value, DistributedTrainer):
            value.rejoin()
        if gradients and isinstance(value.optimizer, DistributedOptimizer):
            gradients.restart()


def _write(array, values) -> None:
    """Write values to an array with an MXNet operation, because its layout may be oneDNN's."""
    mx.nd.array(values, dtype=values.dtype).copyto(array)
