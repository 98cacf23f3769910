"""A guard of Gluon's parameters."""

from typing import Iterator

from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.training import guards


class Guard(guards.Guard):
    """Looks every so many steps whether ranks have equal parameters, and for NaN and infinity.

    Call ``step()`` between backward and the trainer's step. A ``DistributedTrainer`` does it by
    itself where ``HVDLITE_GUARD_STEPS`` says how many steps lie between two looks. ::

        guard = hvd.Guard(net.collect_params(), every=100)
        ...
        loss.backward()
        guard.step()  # HvdliteError: ... parameter 'dense0_weight' differs between ranks: ...
        trainer.step(batch_size)

    :param params: a ParameterDict, a dict or a list of Parameters, in the same order on every rank.
    :param every: steps between two looks, the first of which is before the first step.
    :param process_set: the ranks that train together; a rank outside of it looks at nothing.
    :raises ValueError: ``every`` is less than 1.
    """

    def __init__(
        self, params, every: int = 100, process_set: ProcessSet = global_process_set
    ) -> None:
        self._params = list(params.values() if hasattr(params, "values") else params)
        super().__init__(self._arrays, every, owner_name("guard"), process_set)

    def _arrays(self) -> Iterator[guards.Guarded]:
        for param in self._params:
            if param._data is None:  # its shape is not known yet
                continue
            gradient = None if param.grad_req == "null" else param.list_grad()[0].asnumpy()
            yield guards.Guarded(param.name, param.list_data()[0].asnumpy(), gradient)
