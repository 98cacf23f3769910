"""Notices if a script changes parameters on one rank only, for example their grad_req."""

from operator import attrgetter, is_
from typing import Any, Callable, Dict, List, Tuple

import mxnet as mx
import numpy as np

from hvdlite.core.agreement import announce, digest_of_bytes
from hvdlite.core.names import tensor_name
from hvdlite.core.native import HvdliteError
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.mxnet.steps import Steps
from hvdlite.training.plan import agree_on_layers

_GRAD = attrgetter("_grad")  # a list; MXNet makes a new list when the gradient's dtype, ... changes


def fact(param) -> str:
    """Return a text with the facts about a parameter that must be equal on all ranks."""
    kind = param._grad_stype
    sparse = "" if kind == "default" else f", {kind} gradient"
    dtype = param.dtype if isinstance(param.dtype, str) else np.dtype(param.dtype).name
    return f"({dtype}, {param.shape}, grad_req {param.grad_req}{sparse})"


class Compared:
    """Parameters whose properties the ranks have compared.

    :param labels: for each parameter's index, a number that is equal on all ranks.
    :ivar trained: for each parameter with a gradient, by index: True if the gradient is sparse.
    """

    def __init__(self, params: Dict[int, Any], labels: Dict[int, int]) -> None:
        self._labels = labels
        self._facts = {index: fact(param) for index, param in params.items()}
        self._grads = list(map(_GRAD, params.values()))
        self.trained = {
            index: param._grad_stype != "default"
            for index, param in params.items()
            if param.grad_req != "null"
        }

    def tell_changes(
        self, params: Dict[int, Any], names: Callable[[], List[str]], process_set: ProcessSet
    ) -> bool:
        """Return False if nothing has changed; otherwise tell the other ranks, and return True.

        :param names: returns the full names of the tensors that an unchanged rank sends next.
        :raises HvdliteError: on every rank, unless all ranks have made the same changes.
        """
        grads = list(map(_GRAD, params.values()))
        if len(grads) == len(self._grads) and all(map(is_, grads, self._grads)):
            return False
        changes = self._changes(params)
        if not changes:
            self._grads = grads
            return False
        digest = digest_of_bytes(repr(change[1:]).encode() for change in changes)
        mx.nd.waitall()  # because tensors of the last step have the same names
        try:
            announce(names(), digest, process_set)
        except HvdliteError as error:
            name, _, now, before = changes[0]
            more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
            longer = f"{error} On this rank: parameter '{name}' {now}, formerly {before}{more}."
            raise type(error)(longer, **vars(error)) from None
        return True

    def _changes(self, params: Dict[int, Any]) -> List[Tuple]:
        """Return name, label, current fact and former fact of each parameter that has changed."""
        now = {index: fact(param) for index, param in params.items()}
        return [
            (params[index].name, self._labels.get(index), text, self._facts.get(index))
            for index, text in now.items()
            if text != self._facts.get(index)
        ]


class OfStore:
    """The parameters of the gluon Trainer that uses a kvstore; the keys are parameters' indices."""

    def __init__(self, owner: str, trainer, labels: Dict[int, int]) -> None:
        self._owner, self._trainer, self._labels = owner, trainer, labels
        self._compared: Any = None
        self._steps = Steps()

    def compare(self, key: int, on_store: bool) -> None:
        """At the first key of a step, raise unless the ranks have the same parameters.

        :param on_store: whether the store updates the weights; the first call compares this, too.
        """
        if not self._steps.begins(key, key):
            return
        params = dict(enumerate(self._trainer._params))
        if self._compared is None:
            facts = [*(fact(params[i]) for i in self._labels), str(on_store)]
            names = [*(params[i].name for i in self._labels), "update_on_kvstore"]
            agree_on_layers(self._owner, names, facts, global_process_set)
        elif not self._compared.tell_changes(params, self._requests, global_process_set):
            return
        self._compared = Compared(params, self._labels)

    def _requests(self) -> List[str]:
        """Return the names of the tensors that a step submits up to the first sparse gradient."""
        trained = self._compared.trained
        names = {i: f"{self._owner}.{self._labels[i]}" for i in trained}
        sparse = [f"sparse.{names[i]}.rows" for i in trained if trained[i]]
        dense = [tensor_name("allreduce", names[i]) for i in trained if not trained[i]]
        return [*dense, *sparse[:1]]
