"""DistributedTrainer: a gluon.Trainer that averages gradients over ranks."""

import os
import warnings
from typing import Callable, Collection, Dict, Iterator, List, Optional, Set

import mxnet as mx
import numpy as np

from hvdlite import numpy as collectives
from hvdlite.core import topology
from hvdlite.core.names import owner_name, tensor_name
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Average, Sum
from hvdlite.mxnet.gradients import Gradients, common_order
from hvdlite.mxnet.optimizer import DistributedOptimizer, undistribute
from hvdlite.mxnet.parameters import Guard
from hvdlite.mxnet.states import refuse_begun, with_left_out
from hvdlite.mxnet.steps import Aside
from hvdlite.mxnet.zero_copy import SharedGradients, forget_shared, is_shared
from hvdlite.training import left_out
from hvdlite.training.codecs import NoneCompressor
from hvdlite.training.guards import steps_from_environment
from hvdlite.training.plan import Reduction, check_passes


def _leaves_sums() -> bool:
    text = os.environ.get("HVDLITE_HOROVOD_SUMS", "")
    if text not in ("", "0", "1"):
        raise ValueError(f"HVDLITE_HOROVOD_SUMS is '{text}': expected 0 or 1")
    return text == "1"


class DistributedTrainer(mx.gluon.Trainer):
    """A ``gluon.Trainer`` whose ``step(batch_size)`` averages gradients over ranks, then updates.

    ``batch_size`` is the batch size of one rank, over all its contexts. Between
    ``allreduce_grads()`` and ``update(batch_size)`` the gradients are averages over ranks, so a
    script can clip them there as in one process. In Horovod on CPUs they are sums divided by
    ``gradient_predivide_factor``, and scripts clip to a limit times ``hvd.size()``. To run such a
    script set HVDLITE_HOROVOD_SUMS=1: gradients are these sums, and the update divides by the size.

    A program without hvdlite can load the files of ``save_states()``.

    :param params: a ParameterDict, a dict or a list of Parameters. If they are on several contexts,
        gradients are summed over the contexts before they are averaged over ranks.
    :param optimizer: a name or an ``mx.optimizer.Optimizer``.
    :param optimizer_params: a dict of arguments for an optimizer given by its name.
    :param compression: a value of ``hvd.Compression``, or a class of your own.
    :param gradient_predivide_factor: f: gradients are divided by f before the sum over ranks and
        multiplied by f / size after it, for dtypes in which the sum would overflow.
    :param prefix: the beginning of the names of the trainer's tensors; by default it contains the
        number of the trainer, so all ranks must make their trainers in the same order.
    :param num_groups: the number of groups of gradients. A group is one operation, submitted when
        backward has written all its gradients. 0: groups of 1 MiB or more; the group of the front
        layers may be smaller.
    :param process_set: the ranks that take part; a rank outside the set trains alone, with its own
        gradients.
    :param op: ``hvd.Average``; or ``hvd.Sum``: then ``step`` takes the batch size of all ranks.
    :param backward_passes_per_step: k: call ``step()`` after each backward, with the batch size of
        this backward; every k-th call averages and applies the sum of the last k gradients.
    :param sparse_as_dense: send row_sparse gradients as dense arrays, so that ``step`` does not
        wait for them; faster if most rows are present.
    :param zero_copy: keep gradients in memory that all ranks of the host map, and average them
        there; see :attr:`zero_copy_parameters`. On one host the results are bitwise the same.
    :raises ValueError: an argument is wrong; ``process_set`` is not registered.
    :raises hvdlite.HvdliteError: at the first step: the ranks have different networks.
    """

    def __init__(
        self, params, optimizer, optimizer_params=None, compression=NoneCompressor,
        gradient_predivide_factor=1.0, prefix=None, num_groups=0, process_set=global_process_set, *,
        op=Average, backward_passes_per_step=1, sparse_as_dense=False, zero_copy=True,
    ) -> None:  # fmt: skip
        if isinstance(optimizer, DistributedOptimizer):
            warnings.warn(
                "DistributedTrainer averages by itself, so it uses the plain optimizer inside the "
                "DistributedOptimizer: pass the plain optimizer",
                stacklevel=2,
            )
            optimizer = undistribute(optimizer)
        sums = op == Average and _leaves_sums()
        reduction = Reduction(
            compression, gradient_predivide_factor, num_groups, op, process_set, sparse_as_dense,
            sums,
        ).check()  # fmt: skip
        self._passes = check_passes(backward_passes_per_step)
        super().__init__(params, optimizer, optimizer_params, kvstore=None)
        owner = owner_name("trainer", process_set) if prefix is None else prefix
        self._gradients = Gradients(owner, reduction, self._passes)
        self._sums_of = 1.0
        self._divide_sums()
        self._zero_copy = zero_copy
        self._shared = self._share_gradients(zero_copy)
        every = steps_from_environment()
        self._guard = Guard(self._params, every, process_set) if every else None
        self._aside = Aside()
        self._pass = 0  # backward passes done in this step, from 1 to self._passes
        self._rows = 0  # sum of the batch sizes of this step's backward passes so far
        # Indices of parameters whose gradient is stale on all ranks; None: not determined.
        self._unused: Optional[Set[int]] = None

    def rejoin(self) -> None:
        """Prepare for training in a new job with the same parameters. All ranks make this call."""
        self._gradients.restart()
        self._divide_sums()
        forget_shared(self._params)
        self._shared = self._share_gradients(self._zero_copy)
        self._aside, self._pass, self._rows, self._unused = Aside(), 0, 0, None

    def save_states(self, fname) -> None:
        """Save the states that Gluon saves, and this rank's compression residuals.

        :raises RuntimeError: the trainer is between the backward passes of a step.
        """
        refuse_begun(self)
        with with_left_out(self._gradients, self._updaters[0].optimizer):
            super().save_states(fname)

    def load_states(self, fname) -> None:
        """Load states; the next step fails unless all ranks have loaded states of the same step."""
        super().load_states(fname)
        saved = self._optimizer.__dict__.pop(left_out.KEY, None)
        self._gradients.loaded(1 + self._optimizer.num_update)
        if saved:
            self._gradients.leave_out(left_out.own_of(saved))

    def step(self, batch_size, ignore_stale_grad=False) -> None:
        """Average the gradients over ranks and update the parameters.

        :param batch_size: of this rank and this backward pass; the sum over the backward passes
            must be equal on all ranks, otherwise MXNet raises an error at the next wait.
        :param ignore_stale_grad: as in Gluon, do not update parameters whose gradient is stale
            (not computed since the last update). If a gradient is stale on some ranks only, these
            ranks contribute zeros, and all ranks update. The argument must be equal on all ranks;
            if it is True, ranks wait for each other.
        """
        rows = self._rows + batch_size
        self._gradients.rescale = self._scale / rows if rows else None
        try:
            self.allreduce_grads(ignore_stale_grad)
            self.update(batch_size, ignore_stale_grad)
        finally:
            self._gradients.rescale = None

    def allreduce_grads(self, ignore_stale_grad=False) -> None:
        """Average the gradients over ranks in the last backward pass of a step.

        :param ignore_stale_grad: as for :meth:`step`; if False, stale gradients are averaged, too.
        """
        self._pass = self._pass % self._passes + 1
        if self._pass < self._passes:
            self._put_aside()
            return
        if self._passes > 1:
            self._bring_back()
        if self._guard:
            self._guard.step()
        if ignore_stale_grad:
            self._agree_on_stale(clear=True)
        super().allreduce_grads()

    def update(self, batch_size, ignore_stale_grad=False) -> None:
        """In a step's last backward pass, update the parameters; arguments as for :meth:`step`."""
        self._rows += batch_size
        if 1 < self._passes != self._pass:
            return
        rows, self._rows = self._rows, 0
        if ignore_stale_grad and self._unused is None:
            self._agree_on_stale(clear=False)
        self._unused = None
        super().update(rows, ignore_stale_grad)

    def _allreduce_grads(self) -> None:
        self._pair(self._requests)
        left_out = self._left_out()
        trained = self._trained()
        self._gradients.average({i: trained[i].list_grad() for i in trained if i not in left_out})

    def _left_out(self) -> Collection[int]:
        """Return the indices of parameters whose gradients this step does not average."""
        return self._unused or set()

    @property
    def zero_copy_parameters(self) -> List[str]:
        """Names of parameters whose gradients are averaged without a copy, after the first step.

        The trainer copies a gradient if ``hvd.share_gradients`` can't move it. The trainer also
        copies the gradient of a parameter that was initialized before the trainer was made, if the
        script refers to this gradient, or a net with ``hybridize(static_shape=True)`` wrote it.
        """
        return [param.name for param in self._params if is_shared(param)]

    def _divide_sums(self) -> None:
        """With HVDLITE_HOROVOD_SUMS=1 make the update divide by the number of ranks."""
        reduction = self._gradients.reduction
        summed = reduction.sums and not self._gradients.alone
        ranks = reduction.process_set.size() / reduction.predivide_factor if summed else 1.0
        self._scale *= self._sums_of / ranks
        self._sums_of = ranks

    def _share_gradients(self, zero_copy: bool) -> Optional[SharedGradients]:
        """Move the gradients to shared memory if this rank can use them there.

        :return: None on all ranks if the trainer has a process set of its own. Otherwise an object
            on every rank, because ``SharedGradients.join`` is collective.
        """
        reduction = self._gradients.reduction
        if reduction.process_set is not global_process_set:
            return None
        alone = not topology.is_initialized() or topology.size() == 1
        wanted = zero_copy and not alone and reduction.compression is NoneCompressor
        return SharedGradients(self._in_order() if wanted else ())

    def _in_order(self) -> List[mx.gluon.Parameter]:
        return [self._params[i] for i in common_order(dict(enumerate(self._params)))]

    def _requests(self) -> List[str]:
        """Return the names of the tensors that a step submits for its gradients."""
        return self._gradients.requests()

    def _pair(self, requests: Callable[[], List[str]]) -> bool:
        """Match the parameters with those of other ranks; return True at the first call only."""
        first = self._gradients.pair(dict(enumerate(self._params)), requests)
        if first and self._shared:
            self._shared.join(self._in_order(), self._gradients.owner)
        return first

    def _trained(self) -> Dict[int, mx.gluon.Parameter]:
        return {i: param for i, param in enumerate(self._params) if param.grad_req != "null"}

    def _arrays(self) -> Iterator[tuple]:
        for i, param in self._trained().items():
            for at, (data, grad) in enumerate(zip(param.list_data(), param.list_grad())):
                yield (i, at), param, data, grad

    def _put_aside(self) -> None:
        for key, param, data, grad in self._arrays():
            if data._fresh_grad:
                self._aside.put(key, grad, param.grad_req)
                data._fresh_grad = False

    def _bring_back(self) -> None:
        for key, _, data, grad in self._arrays():
            if self._aside.bring_back(key, grad, data._fresh_grad):
                data._fresh_grad = True

    def _agree_on_stale(self, clear: bool) -> None:
        """Find the gradients that are stale on all ranks; mark all others as fresh on this rank.

        :param clear: True: set to zero each gradient that is stale here but fresh on another rank,
            so that this rank does not contribute old values.
        """
        name = f"{self._gradients.owner}.fresh"
        process_set = self._gradients.reduction.process_set
        self._pair(lambda: [tensor_name("allreduce", name, process_set)])
        trained = self._trained()
        order = self._gradients.in_order(trained)
        fresh = [any(data._fresh_grad for data in trained[i].list_data()) for i in order]
        somewhere = np.array(fresh, bool)
        if not self._gradients.alone:
            somewhere = collectives.allreduce(somewhere, name, Sum, process_set=process_set)
        self._unused = {i for i, used in zip(order, somewhere) if not used}
        for (i, _), param, data, grad in self._arrays():
            if i not in self._unused and not data._fresh_grad:
                if clear and param.grad_req == "write":
                    grad = grad.as_nd_ndarray()
                    mx.nd.zeros_like(grad, out=grad)
                data._fresh_grad = True
