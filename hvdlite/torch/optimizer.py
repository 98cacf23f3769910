"""DistributedOptimizer: any PyTorch optimizer, fed with gradients averaged over ranks."""

import warnings
import weakref
from contextlib import contextmanager
from numbers import Real
from typing import Any, Callable, Dict, Iterable, NoReturn, Optional, Sequence, Tuple, Union

import torch

from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import Adasum, Average
from hvdlite.torch import notes, ops
from hvdlite.torch.gradients import Gradients
from hvdlite.training.codecs import NoneCompressor
from hvdlite.training.plan import Reduction, check_passes

_NO_SUCH_STEP = -1  # of autograd, outside of backward
_NOT_SKIPPED = (
    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
    "the gradients are averaged already, put step() into `with optimizer.skip_synchronize():`"
)


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer whose ``step()`` applies the gradients of all ranks' batches.

    Gradients are averaged while backward computes the others::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    It *is* the optimizer: an instance of a subclass of its class that shares its attributes, so
    that schedulers, GradScaler and ``state_dict()`` work as they do without hvdlite. From the
    second step on gradients are views of one piece of memory, which the ranks of a host share.

    To change averaged gradients before they are applied, call ``synchronize()`` in between::

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    A gradient that backward has not written on this rank counts as zero. A parameter that backward
    has never reached on any rank has none, as in one process. The closure of ``step(closure)`` is
    followed by an average of gradients and of the loss, each time that it is called.

    A parameter has one such optimizer: where a newer one is made of it, the older one's ``step()``
    and ``synchronize()`` raise a RuntimeError.

    :param optimizer: a ``torch.optim.Optimizer`` of parameters on CPUs or CUDA. Gradients on CUDA
        are copied to pinned memory of the host, reduced there, and copied back.
    :param named_parameters: ``model.named_parameters()``: names for errors. Without it, parameters
        are numbered as the optimizer has them.
    :param compression: one of ``hvd.Compression``, or a class of your own.
    :param backward_passes_per_step: k: ``step()`` follows k backwards, whose gradients add up.
    :param op: ``hvd.Average``, ``hvd.Sum``, or ``hvd.Adasum``: then each rank takes its own step,
        and what that changed is combined.
    :param gradient_predivide_factor: f: gradients are divided by f before they are summed, and
        multiplied by f / size after it.
    :param num_groups: the older name of ``groups`` as a number.
    :param groups: a number of groups in which gradients are sent, or lists of parameters each of
        which is sent at once. By default, groups of 1 MiB or more.
    :param sparse_as_dense: send sparse gradients whole instead of the rows that they have.
    :param process_set: the ranks among which; the optimizer of any other rank is a plain one.
    :raises ValueError: an argument that makes no sense; a parameter on another device, or whose sum
        over ranks another DistributedOptimizer is making.
    :raises hvdlite.HvdliteError: at the first step: the ranks have different parameters.
    """

    def __new__(
        cls, optimizer: torch.optim.Optimizer,
        named_parameters: Optional[Iterable[Tuple[str, torch.Tensor]]] = None,
        compression=NoneCompressor, backward_passes_per_step: int = 1, op: int = Average,
        gradient_predivide_factor: float = 1.0, num_groups: int = 0,
        groups: Union[None, int, Sequence[Sequence[torch.Tensor]]] = None,
        sparse_as_dense: bool = False, process_set: ProcessSet = global_process_set,
    ):  # fmt: skip
        _check_optimizer(optimizer)
        lists = groups if isinstance(groups, (list, tuple)) else ()
        number: Any = num_groups if groups is None or lists else groups
        reduction = Reduction(
            compression, gradient_predivide_factor, number, op, process_set, sparse_as_dense
        )
        named = _named(optimizer, named_parameters)
        passes = check_passes(backward_passes_per_step)
        _check_groups(lists)
        reduction.checked()  # before it is counted: a wrong call renames no later optimizer
        owner = owner_name("optimizer")  # counted on every rank
        known = {  # Horovod's attributes, which scripts read
            "op": op,
            "process_set": process_set,
            "sparse_as_dense": sparse_as_dense,
            "backward_passes_per_step": passes,
            "gradient_predivide_factor": gradient_predivide_factor,
            "_parameter_names": dict(named),
        }
        if not process_set.included():
            return _distribute(optimizer, DistributedOptimizer, None, known)
        if op == Adasum:
            deltas = _Deltas(owner, named, process_set)
            return _distribute(optimizer, _AdasumOptimizer, deltas, known)
        gradients = Gradients(owner, named, reduction, lists, passes)
        return _distribute(optimizer, DistributedOptimizer, gradients, known)

    _synchronized: bool
    _asked: bool  # the script itself has called synchronize() since the last step
    _parameter_names: Dict[torch.Tensor, str]

    def __init__(self, *args, **kwargs) -> None:
        """Do nothing: the attributes are those of the optimizer that was given."""

    @property
    def param_groups(self) -> list:
        """The optimizer's groups of parameters.

        Reading them after backward, as GradScaler does, first averages the gradients.
        """
        waits = self._gradients is not None and self._gradients.written
        if waits and torch._C._current_graph_task_id() == _NO_SUCH_STEP:
            self._finish()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups: list) -> None:
        self.__dict__["param_groups"] = groups

    def step(self, closure: Optional[Callable] = None):
        """Average the gradients, unless ``synchronize()`` has, and do the optimizer's step.

        Warns, as Horovod does, after ``synchronize()`` outside of ``skip_synchronize()``.
        """
        if closure is not None:
            return super().step(self._averaged(closure))
        if not self._skipping:
            if self._asked:
                warnings.warn(_NOT_SKIPPED, stacklevel=2)
            if not self._synchronized or (self._gradients and self._gradients.written):
                self._finish()
        self._synchronized = self._asked = False
        with notes.update():
            return super().step()

    vars(step)["hooked"] = True  # or PyTorch would have hooks of steps called here, too

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do what the optimizer's does; averages of which no step came are forgotten."""
        if not (self._gradients and self._gradients.written):
            self._synchronized = self._asked = False  # GradScaler has skipped the step
        super().zero_grad(set_to_none)

    def __reduce_ex__(self, protocol) -> NoReturn:
        raise TypeError(
            "a DistributedOptimizer can't be copied or pickled: keep its state_dict(), and wrap "
            "another optimizer"
        )

    def synchronize(self) -> None:
        """Wait until the gradients are those of all ranks. Collective.

        :raises hvdlite.HvdliteError: the ranks have different parameters, or one has left.
        """
        self._finish()
        self._asked = True

    @contextmanager
    def skip_synchronize(self):
        """Inside the block ``step()`` takes the gradients as they are."""
        self._skipping = True
        try:
            yield
        finally:
            self._skipping = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Average after so many backwards from now on; on every rank, between steps."""
        self.backward_passes_per_step = check_passes(passes)
        if isinstance(self._gradients, Gradients):  # Adasum combines steps, after any backwards
            self._gradients.passes = passes
            self._gradients.restart()

    def add_param_group(self, param_group: dict) -> None:
        """Add a group of parameters, on every rank; they have no names."""
        super().add_param_group(param_group)
        at = len(self.param_groups) - 1
        group = self.param_groups[at]["params"]
        added = {param: f"noname.{at}.{i}" for i, param in enumerate(group)}
        self._parameter_names.update(added)
        if self._gradients is not None:
            self._gradients.add(added)

    def begin_anew(self) -> None:
        """Go on in a job with other ranks, between steps; :mod:`hvdlite.elastic` calls it."""
        self._synchronized = self._asked = False
        if isinstance(self._gradients, Gradients):
            self._gradients.begin_anew()

    def _finish(self) -> None:
        if self._gradients is not None:
            self._gradients.finish()
        self._synchronized = True

    def _averaged(self, closure: Callable) -> Callable:
        def averaged():
            loss = closure()
            if not self._skipping:
                self._finish()
                is_loss = isinstance(loss, (torch.Tensor, Real))
                if is_loss and isinstance(self._gradients, Gradients):
                    loss = self._gradients.average_loss(loss)
            return loss

        return averaged


class _Deltas:
    """The parameters whose changes Adasum combines."""

    written = ()  # no gradient waits to be averaged

    def __init__(self, name: str, named: Dict[torch.Tensor, str], process_set: ProcessSet) -> None:
        self.name, self.params, self.process_set = name, list(named), process_set

    def add(self, named: Dict[torch.Tensor, str]) -> None:
        """Combine the changes of these, too."""
        self.params.extend(named)

    def finish(self) -> None:
        """Do nothing: each rank takes its step with gradients of its own."""


class _AdasumOptimizer(DistributedOptimizer):
    """Combines what each rank's step has changed (Maleki et al., "Scaling Distributed Training with
    Adaptive Summation", 2020), as Horovod's optimizer does."""

    def step(self, closure: Optional[Callable] = None):
        params = self._gradients.params
        before = [param.detach().clone() for param in params]
        loss = super(DistributedOptimizer, self).step(closure)
        with torch.no_grad():
            deltas = [param - old for param, old in zip(params, before)]
            how = {"name": self._gradients.name, "process_set": self._gradients.process_set}
            ops.grouped_allreduce_(deltas, op=Adasum, **how)
            for param, old, delta in zip(params, before, deltas):
                param.copy_(old + delta)
        return loss

    vars(step)["hooked"] = True

    def skip_synchronize(self):
        """Raise: there is nothing to skip."""
        raise ValueError("op=Adasum combines after the step: there is no synchronize() to skip")


def _check_optimizer(optimizer) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("the optimizer is distributed already: expected a plain one")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")


def _named(optimizer, named_parameters) -> Dict[torch.Tensor, str]:
    """Return a name for each of the optimizer's parameters, in an order of all ranks."""
    own = {
        param: f"noname.{i}.{j}"
        for i, group in enumerate(optimizer.param_groups)
        for j, param in enumerate(group["params"])
    }
    if named_parameters is None:
        return own
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters: expected pairs of names and parameters, such as those of "
            "model.named_parameters()"
        )
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"named_parameters: names come more than once: {', '.join(repeated)}")
    named = {param: name for name, param in pairs if param in own}
    unnamed = [own[param] for param in own if param not in named]
    if unnamed:
        raise ValueError(
            f"named_parameters lacks {len(unnamed)} parameters of the optimizer, such as the one "
            f"that it has as {unnamed[0].removeprefix('noname.')} (group.position)"
        )
    return named


def _check_groups(groups: Sequence) -> None:
    flat = [param for group in groups for param in group]
    if not all(isinstance(param, torch.Tensor) for param in flat):
        raise ValueError("groups: expected a number, or lists of parameters")
    if len({id(param) for param in flat}) < len(flat):
        raise ValueError("groups: a parameter comes more than once")


def _distribute(optimizer, kind: type, gradients, known: dict) -> DistributedOptimizer:
    plain = type(optimizer)
    distributed: Any = object.__new__(type(plain.__name__, (kind, plain), {}))
    distributed.__dict__ = optimizer.__dict__  # shared, both ways
    distributed.__dict__.update(known, _gradients=gradients)
    distributed.__dict__.update(_synchronized=False, _asked=False, _skipping=False)
    _keep_scheduler(distributed)
    return distributed


def _keep_scheduler(distributed) -> None:
    """Have schedulers that were made before see this optimizer's steps.

    They put a function in place of the optimizer's ``step``, which would be called instead.
    """
    if "step" not in distributed.__dict__:
        return

    kind, own = type(distributed), weakref.ref(distributed)  # which holds this function itself

    def step(closure: Optional[Callable] = None):
        optimizer: Any = own()
        optimizer._opt_called = True
        return kind.step(optimizer, closure)

    vars(step)["_wrapped_by_lr_sched"] = True
    distributed.__dict__["step"] = step
