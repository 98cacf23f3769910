"""The guard of Gluon's parameters."""

from typing import Iterator

from hvdlite.training import guards


class Guard(guards.Guard):
    """Checks every few steps that ranks have equal parameters, without NaN and infinity.

    Call ``step()`` between backward and the trainer's step. With ``HVDLITE_GUARD_STEPS`` a
    ``DistributedTrainer`` checks by itself, that many steps apart. ::

        guard = hvd.Guard(net.collect_params(), every=100)
        ...
        loss.backward()
        guard.step()  # HvdliteError: ... parameter 'dense0_weight' differs between ranks: ...
        trainer.step(batch_size)

    :param params: a ParameterDict, a dict or a list of Parameters, in the same order on every rank.
    :param every: steps between two checks; the first check is before the first step.
    :param process_set: the ranks that train together; other ranks check nothing.
    :raises ValueError: ``every`` is less than 1.
    """

    def _guarded(self) -> Iterator[guards.Guarded]:
        for param in self._params:
            if param._data is None:  # the parameter's shape is not known yet
                continue
            gradient = None if param.grad_req == "null" else param.list_grad()[0].asnumpy()
            yield guards.Guarded(param.name, param._data[0].asnumpy(), gradient)
