"""DistributedOptimizer: an MXNet optimizer that averages gradients over ranks."""

import copy
import functools
from typing import Any, Callable, Dict, Optional, Sequence

import mxnet as mx

from hvdlite.core.names import owner_name
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.mxnet.gradients import Gradients
from hvdlite.mxnet.parameters import trainer_of
from hvdlite.mxnet.steps import Aside, Steps
from hvdlite.training import left_out
from hvdlite.training.codecs import NoneCompressor
from hvdlite.training.plan import Reduction, check_passes


class DistributedOptimizer:
    """An optimizer that averages each gradient over all ranks before it updates the weight.

    Use the optimizer in a gluon Trainer, in a Module, or alone::

        opt = mx.optimizer.SGD(learning_rate=0.1, momentum=0.9)
        trainer = gluon.Trainer(net.collect_params(), hvd.DistributedOptimizer(opt), kvstore=None)

    ``trainer.step(batch_size)`` takes the batch size of one rank, equal on all ranks; all ranks
    must have the same ``rescale_grad``. ``update`` averages and updates in one call: to clip
    averaged gradients before the update, use :class:`DistributedTrainer`.

    The result is an instance of a subclass of the optimizer's class and shares the optimizer's
    attributes. So learning rates, multipliers, schedulers, ``rescale_grad`` and states work as
    without hvdlite, including after ``save_states`` and ``load_states``.

    :param optimizer: an ``mx.optimizer.Optimizer``.
    :param compression: as for :class:`DistributedTrainer`, like all other arguments. num_groups
        divides the gradients of one call of ``update``. For ``ignore_stale_grad`` use
        DistributedTrainer: with this class, a rank would not submit its stale gradients.
    :raises ValueError: an argument is wrong; ``process_set`` is not registered.
    :raises hvdlite.HvdliteError: at the first update: the ranks have different networks.
    """

    _averaging: "_Averaging"
    rescale_grad: float  # rescale_grad and param_dict are attributes of the given optimizer
    param_dict: dict

    def __new__(
        cls, optimizer, gradient_predivide_factor=1.0, num_groups=0,
        process_set=global_process_set, *, compression=NoneCompressor, op=Average,
        backward_passes_per_step=1, sparse_as_dense=False,
    ):  # fmt: skip
        if isinstance(optimizer, DistributedOptimizer) or not isinstance(
            optimizer, mx.optimizer.Optimizer
        ):
            is_ours = " that is distributed already" if hasattr(optimizer, "_averaging") else ""
            got = f"{type(optimizer).__name__}{is_ours}"
            raise ValueError(f"DistributedOptimizer: expected a plain MXNet optimizer, got {got}")
        reduction = Reduction(
            compression, gradient_predivide_factor, num_groups, op, process_set, sparse_as_dense
        ).check()
        passes = check_passes(backward_passes_per_step)
        gradients = Gradients(owner_name("optimizer", process_set), reduction, passes)
        return _distribute(optimizer, _Averaging(gradients, passes))

    @property
    def _optimizer(self):
        """The given optimizer; Horovod uses the same name for this attribute."""
        return self._averaging.plain

    def __init__(self, *args, **kwargs) -> None:
        """Do nothing, because ``__new__`` has set the attributes."""

    def update(self, index, weight, grad, state):
        """Average ``grad`` over ranks, then update ``weight``; all arguments may be lists."""
        self._when_averaged(super().update, index, weight, grad, state)

    def update_multi_precision(self, index, weight, grad, state):
        """Do what :meth:`update` does, with float32 master weights if the optimizer has them."""
        self._when_averaged(super().update_multi_precision, index, weight, grad, state)

    def _when_averaged(self, update, index, weight, grad, state) -> None:
        averaging = self._averaging
        if averaging.updating:  # update_multi_precision() called update(): do not average twice
            update(index, weight, grad, state)
            return
        several = isinstance(index, (list, tuple))
        grads = dict(zip(index, grad)) if several else {index: grad}
        rescale = averaging.of_step(grads, self.rescale_grad, self.param_dict or {})
        if rescale is None:
            return
        own, self.rescale_grad, averaging.updating = self.rescale_grad, rescale, True
        try:
            update(index, weight, grad, state)
        finally:
            self.rescale_grad, averaging.updating = own, False

    def __copy__(self):
        return self.__deepcopy__({})

    def __deepcopy__(self, memo):
        """Return a copy with other tensor names: copy and original may reduce at the same time."""
        plain, own = copy.deepcopy(undistribute(self), memo), self._averaging
        return _distribute(plain, _Averaging(own.gradients.copy(), own.passes))

    def __reduce__(self):
        plain, own = undistribute(self), self._averaging
        left_out.refuse_begun(own.passes, bool(own.rescales))
        options = (own.gradients.owner, own.gradients.reduction, own.passes)
        kept = own.gradients.left_out()
        state = {**plain.__getstate__(), **({left_out.KEY: left_out.tagged(kept)} if kept else {})}
        return _restore, (type(plain), state, *options)


class _Averaging:
    """Averages the gradients of a DistributedOptimizer before each update."""

    def __init__(self, gradients: Gradients, passes: int) -> None:
        self.gradients = gradients
        self.passes = passes
        self.plain = None  # the optimizer that the user passed to DistributedOptimizer
        self.updating = False  # True while the plain optimizer's update runs
        self._aside = Aside()
        self._steps = Steps()
        self.rescales: Dict[tuple, list] = {}  # rescale_grad of the step's backward passes so far

    def of_step(self, grads: dict, rescale: float, params: dict) -> Optional[float]:
        """In the last backward pass of a step, average the gradients and return rescale_grad.

        In earlier passes return None. A pass has rescale_grad = 1 / its batch size, so a step has
        rescale_grad = 1 / (sum of 1 / rescale_grad of all passes).
        """
        _refuse_amp(params)
        if self.passes == 1:
            self._average(grads, params, rescale)
            return rescale
        key = next((index, grad.context) for index, grad in grads.items())
        rescales = [*self.rescales.pop(key, ()), rescale]
        if len(rescales) < self.passes:
            self.rescales[key] = rescales
            for index, grad in grads.items():
                grad_req = params[index].grad_req if index in params else "write"
                self._aside.put((index, grad.context), grad, grad_req)
            return None
        rescale = 1 / sum(1 / each for each in rescales)
        self._average(grads, params, rescale)
        return rescale

    def _average(self, grads: dict, params: dict, rescale: float) -> None:
        if params and self._steps.begins(min(grads), max(grads)):
            self.gradients.pair(params)
        chosen: Dict[int, Sequence] = {}
        for index, grad in grads.items():
            arrays = params[index].list_grad() if index in params else [grad]
            if len(arrays) == 1:
                chosen[index] = [grad]
            # A Trainer updates its contexts one after another: average all arrays at the first.
            elif grad.context == arrays[0].context:
                chosen[index] = arrays
        if self.passes > 1:
            for index, arrays in chosen.items():
                for array in arrays:
                    self._aside.bring_back((index, array.context), array)
        self.gradients.rescale = rescale
        self.gradients.average(chosen)


def _refuse_amp(params: dict) -> None:
    trainer = trainer_of(next(iter(params.values()), None))
    if getattr(trainer, "_amp_loss_scaler", None) is not None:
        raise ValueError(
            "AMP looks for overflow before DistributedOptimizer averages the gradients, so only "
            "some ranks would skip a step: use hvdlite.DistributedTrainer with the plain optimizer"
        )


def _distribute(optimizer, averaging: _Averaging) -> DistributedOptimizer:
    kind = type(optimizer)
    distributed: Any = object.__new__(type(kind.__name__, (DistributedOptimizer, kind), {}))
    distributed.__dict__ = optimizer.__dict__  # one dict for both objects
    distributed._averaging, averaging.plain = averaging, optimizer
    return distributed


def undistribute(optimizer) -> Any:
    """Return the optimizer if it is plain; otherwise a plain optimizer with its attributes."""
    if not isinstance(optimizer, DistributedOptimizer):
        return optimizer
    plain: Any = object.__new__(type(optimizer).__mro__[2])
    plain.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k != "_averaging"}
    return plain


def _restore(kind, state, owner, reduction, passes) -> DistributedOptimizer:
    """Rebuild a pickled optimizer, with new tensor names: the original may still exist."""
    plain, kept = object.__new__(kind), state.pop(left_out.KEY, None)
    plain.__setstate__(state)
    gradients = Gradients(owner, reduction, passes).copy()
    gradients.loaded(1 + plain.num_update)
    if kept:
        gradients.leave_out(left_out.own_of(kept))
    return _distribute(plain, _Averaging(gradients, passes))


def _keeping_averages(set_states: Callable) -> Callable:
    """Make ``set_states`` keep the updater's way of averaging, because one rank may load alone.

    Gluon's ``load_states`` replaces the optimizer by the one in the file. The loaded optimizer may
    be plain, so that this rank would no longer average, or have tensor names of another job.
    """

    @functools.wraps(set_states)
    def set_states_and_average(self, states) -> None:
        before = self.optimizer
        set_states(self, states)
        loaded, plain = self.optimizer, undistribute(self.optimizer)
        if loaded is not before and isinstance(loaded, DistributedOptimizer):
            own = loaded._averaging.gradients.left_out()
            vars(plain).update({left_out.KEY: left_out.tagged(own)} if own else {})
        if not isinstance(before, DistributedOptimizer):
            self.optimizer = plain
            return
        gradients = before._averaging.gradients
        gradients.loaded(1 + plain.num_update)
        if loaded is before:
            return
        kept = vars(plain).pop(left_out.KEY, None)
        if kept:
            gradients.leave_out(left_out.own_of(kept))
        self.optimizer = _distribute(plain, _Averaging(gradients, before._averaging.passes))

    return set_states_and_average


mx.optimizer.Updater.set_states = _keeping_averages(mx.optimizer.Updater.set_states)
