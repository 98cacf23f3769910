"""DistributedOptimizer: any PyTorch optimizer, with gradients averaged over ranks."""

import warnings
import weakref
from contextlib import contextmanager
from numbers import Real
from typing import Any, Callable, Dict, Iterable, List, NoReturn, Optional, Sequence, Tuple, Union

import torch

from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import Adasum, Average
from hvdlite.torch import notes
from hvdlite.torch.changes import digest_of
from hvdlite.torch.deltas import Deltas
from hvdlite.torch.gradients import Gradients
from hvdlite.torch.parameter_names import check_groups, named_of, numbered
from hvdlite.training import left_out
from hvdlite.training.codecs import NoneCompressor
from hvdlite.training.plan import Reduction, check_passes

_NO_SUCH_STEP = -1  # what torch._C._current_graph_task_id() returns outside of backward
_NOT_SKIPPED = (
    "optimizer.step() called without optimizer.skip_synchronize() after optimizer.synchronize(): "
    "the gradients are averaged already: put step() into `with optimizer.skip_synchronize():`"
)


class DistributedOptimizer(torch.optim.Optimizer):
    """An optimizer whose ``step()`` applies the gradients of all ranks' batches.

    Gradients are averaged while backward computes further gradients::

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())

    The result is an instance of a subclass of the optimizer's class and shares the optimizer's
    attributes, so schedulers, GradScaler and ``state_dict()`` work as without hvdlite. From the
    second step on gradients are views of memory that the ranks of a host share.

    To change averaged gradients before they are applied, call ``synchronize()`` in between::

        loss.backward()
        optimizer.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        with optimizer.skip_synchronize():
            optimizer.step()

    If backward has not written a gradient on this rank, the gradient counts as zero. If backward
    has never reached a parameter on any rank, the parameter has no gradient, as in one process.
    ``step(closure)`` averages gradients and loss after each call of the closure.

    A parameter belongs to the newest DistributedOptimizer that has it. ``step()`` and
    ``synchronize()`` of an older DistributedOptimizer raise a RuntimeError.

    :param optimizer: a ``torch.optim.Optimizer`` of parameters on CPUs or CUDA. NCCL moves the
        gradients on CUDA, unless NCCL refuses the ranks' GPUs; then they go through the host.
    :param named_parameters: ``model.named_parameters()``: names for errors. Without it, parameters
        are numbered in the optimizer's order.
    :param compression: one of ``hvd.Compression``, or your own class.
    :param backward_passes_per_step: ``step()`` follows this number of backward passes, whose
        gradients add up.
    :param op: ``hvd.Average``, ``hvd.Sum``, or ``hvd.Adasum``: with Adasum each rank takes its own
        step, and the changes of the weights are combined.
    :param gradient_predivide_factor: f: gradients are divided by f before the sum over ranks, and
        multiplied by f / size after the sum.
    :param num_groups: the older name of ``groups`` as a number.
    :param groups: the number of groups in which gradients are sent; or lists of parameters, each
        list sent together. By default, groups of 1 MiB or more.
    :param sparse_as_dense: send sparse gradients as dense tensors.
    :param process_set: the ranks that average; on other ranks nothing is averaged.
    :raises ValueError: a wrong argument, a parameter on another device, or a parameter whose
        gradient another DistributedOptimizer is reducing now.
    :raises hvdlite.HvdliteError: at the first step, if the ranks have different parameters.
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
        named = named_of(optimizer, named_parameters)
        passes = check_passes(backward_passes_per_step)
        check_groups(lists)
        # checked before owner_name(), because a wrong call must not change later optimizers' names
        reduction.check()
        # called on all ranks, because each rank counts its own optimizers
        owner = owner_name("optimizer", process_set)
        known = {  # attributes of Horovod's optimizer, for scripts that read them
            "op": op,
            "process_set": process_set,
            "sparse_as_dense": sparse_as_dense,
            "backward_passes_per_step": passes,
            "gradient_predivide_factor": gradient_predivide_factor,
            "_parameter_names": dict(named),
            "_present": None,
        }
        if not process_set.included():
            return _distribute(optimizer, DistributedOptimizer, None, known)
        if op == Adasum:
            deltas = Deltas(owner, named, process_set)
            return _distribute(optimizer, _AdasumOptimizer, deltas, known)
        gradients = Gradients(owner, named, reduction, lists, passes)
        return _distribute(optimizer, DistributedOptimizer, gradients, known)

    _synchronized: bool
    _asked: bool  # True: the script itself has called synchronize() since the last step
    _parameter_names: Dict[torch.Tensor, str]
    _present: Optional[List[int]]  # ids of the parameters in param_groups when _adopt() last ran

    def __init__(self, *args, **kwargs) -> None:
        """Do nothing, because this object shares the attributes of the given optimizer."""

    @property
    def param_groups(self) -> list:
        """The optimizer's groups of parameters.

        A read after a step's last backward, as by GradScaler, first averages the gradients.
        """
        waits = self._gradients is not None and self._gradients.due and not self._adding
        if waits and torch._C._current_graph_task_id() == _NO_SUCH_STEP:
            self._finish()
        return self.__dict__["param_groups"]

    @param_groups.setter
    def param_groups(self, groups: list) -> None:
        self.__dict__["param_groups"] = groups

    def step(self, closure: Optional[Callable] = None):
        """Average the gradients, unless ``synchronize()`` has done so, and do the optimizer's step.

        As Horovod does, warn after ``synchronize()`` if the call is outside ``skip_synchronize()``.
        """
        if closure is not None:
            return super().step(self._averaged(closure))
        if self._synchronized and self._gradients is not None:
            self._gradients.note_dropped()
        if not self._skipping:
            if self._asked:
                warnings.warn(_NOT_SKIPPED, stacklevel=2)
            if not self._synchronized or (self._gradients and self._gradients.written):
                self._finish()
        if self._synchronized and self._gradients is not None:
            self._gradients.changes.refuse_late()
        self._synchronized = self._asked = False
        with notes.update():
            return super().step()

    vars(step)["hooked"] = True  # otherwise PyTorch would call the hooks of step() twice

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Call the optimizer's zero_grad, and forget averages that no step has used."""
        drops = self._synchronized
        if not (self._gradients and self._gradients.written):
            self._synchronized = self._asked = False  # because GradScaler skipped step()
        elif not self._gradients.due:
            self._gradients.restart()  # forgets the backward passes since the last step
        # zero_grad() reads param_groups; if a step is due, this averages the gradients first
        super().zero_grad(set_to_none)
        if isinstance(self._gradients, Gradients) and (drops or self._synchronized):
            self._gradients.changes.dropped = True

    def __reduce_ex__(self, protocol) -> NoReturn:
        raise TypeError(
            "a DistributedOptimizer can't be copied or pickled: copy its state_dict(), and give a "
            "new plain optimizer to hvd.DistributedOptimizer"
        )

    def state_dict(self) -> dict:
        """Return the optimizer's state and, if any, what compression left out on this rank.

        :raises RuntimeError: called between the several backward passes of a step.
        """
        if not isinstance(self._gradients, Gradients):
            return super().state_dict()
        left_out.refuse_begun(self._gradients.changes.passes, self._gradients.written)
        own = self._gradients.left_out()
        return {**super().state_dict(), **({left_out.KEY: left_out.tagged(own)} if own else {})}

    def load_state_dict(self, state_dict: dict) -> None:
        """Load the optimizer's state; the next step raises unless all ranks load the same state."""
        super().load_state_dict(state_dict)
        if isinstance(self._gradients, Gradients) and left_out.KEY in state_dict:
            self._gradients.leave_out(left_out.own_of(state_dict[left_out.KEY]))

    def synchronize(self) -> None:
        """Wait until the gradients are averaged over all ranks. Collective.

        :raises hvdlite.HvdliteError: the ranks have different parameters, or a rank has left.
        """
        self._finish()
        self._asked = True

    @contextmanager
    def skip_synchronize(self):
        """Within the block, ``step()`` uses the gradients without averaging them."""
        self._skipping = True
        try:
            yield
        finally:
            self._skipping = False

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change the number of backward passes in a step. Call it on every rank, between steps."""
        self.backward_passes_per_step = check_passes(passes)
        if isinstance(self._gradients, Gradients):  # Adasum allows any number of backward passes
            self._gradients.changes.passes = passes
            self._gradients.restart()

    def add_param_group(self, param_group: dict) -> None:
        """Add a group of parameters without names. Call it on every rank."""
        self._adding = True  # so that PyTorch's read of param_groups averages no gradients
        try:
            super().add_param_group(param_group)
        finally:
            self._adding = False
        self._adopt()

    def _adopt(self) -> None:
        """Also reduce the gradients of parameters that the script has added in any way.

        A script may change ``param_groups`` itself, or add groups to the wrapped optimizer.
        """
        groups, names = self.__dict__["param_groups"], self._parameter_names
        present = [id(param) for group in groups for param in group["params"]]
        if self._gradients is None or present == self._present:
            return
        self._present = present  # ids stay unique, because `names` keeps parameters
        added = numbered(groups, names)
        removed = [name for param, name in names.items() if id(param) not in set(present)]
        names.update(added)
        self._gradients.adopt(added, removed)

    def begin_anew(self) -> None:
        """Prepare, between two steps, for a changed set of ranks (:mod:`hvdlite.elastic`)."""
        self._synchronized = self._asked = False
        if isinstance(self._gradients, Gradients):
            self._gradients.changes.dropped = False
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


class _AdasumOptimizer(DistributedOptimizer):
    """Combines the changes that each rank's step makes, as Horovod does (Maleki et al., "Scaling
    Distributed Training with Adaptive Summation", 2020)."""

    def step(self, closure: Optional[Callable] = None):
        self._adopt()
        before = [param.detach().clone() for param in self._gradients.params]
        loss = super(DistributedOptimizer, self).step(closure)
        self._gradients.combine(before)
        return loss

    vars(step)["hooked"] = True

    def skip_synchronize(self):
        """Raise ValueError, because Adasum averages no gradients before a step."""
        raise ValueError(
            "skip_synchronize() does not work with op=Adasum, because Adasum synchronizes only "
            "after the step: call step() without it"
        )


def _check_optimizer(optimizer) -> None:
    if isinstance(optimizer, DistributedOptimizer):
        raise ValueError("the optimizer is distributed already: pass a plain optimizer")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"expected a torch.optim.Optimizer, got {type(optimizer).__name__}")


def _distribute(optimizer, kind: type, gradients, known: dict) -> DistributedOptimizer:
    plain = type(optimizer)
    distributed: Any = object.__new__(type(plain.__name__, (kind, plain), {}))
    distributed.__dict__ = optimizer.__dict__  # one dict for both objects
    flags = dict.fromkeys(("_synchronized", "_asked", "_skipping", "_adding"), False)
    distributed.__dict__.update(known, _gradients=gradients, **flags)
    if gradients is not None:
        if isinstance(gradients, Gradients):
            gradients.changes.look = weakref.WeakMethod(distributed._adopt)
        if optimizer.state:  # states that this rank may have loaded alone
            gradients.loaded(digest_of({"state": optimizer.state_dict()["state"]}, sample=0))
        # the wrapped optimizer calls these hooks, too
        distributed.register_step_pre_hook(_refuse_alone)
        distributed.register_load_state_dict_pre_hook(
            lambda _, states: gradients.loaded(digest_of(states))
        )
    _keep_scheduler(distributed)
    return distributed


def _refuse_alone(optimizer: torch.optim.Optimizer, args: tuple, kwargs: dict) -> None:
    """Raise if the script calls step() of the wrapped optimizer, not of the distributed one."""
    gradients = optimizer.__dict__["_gradients"]
    if gradients is None or isinstance(optimizer, DistributedOptimizer):
        return
    closure = any(each is not None for each in (*args[1:], *kwargs.values()))
    if closure or gradients.written or isinstance(gradients, Deltas):
        raise RuntimeError(
            f"step() was called on the plain {type(optimizer).__name__} that was given to "
            "hvd.DistributedOptimizer: it would use this rank's gradients only, and ranks would "
            "get different weights: call step() of the returned DistributedOptimizer"
        )


def _keep_scheduler(distributed) -> None:
    """Let schedulers that were made before this optimizer see its steps.

    Such a scheduler has replaced the wrapped optimizer's ``step`` with its own function.
    """
    if "step" not in distributed.__dict__:
        return
    # a weak reference, because the optimizer refers to step(): a cycle would delay its end
    kind, own = type(distributed), weakref.ref(distributed)

    def step(closure: Optional[Callable] = None):
        optimizer: Any = own()
        optimizer._opt_called = True
        return kind.step(optimizer, closure)

    vars(step)["_wrapped_by_lr_sched"] = True
    distributed.__dict__["step"] = step
