"""Guard: checks that Gluon parameters are equal on all ranks."""

from typing import Iterator

from hvdlite.training import guards


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
