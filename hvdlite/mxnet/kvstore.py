"""The kvstore ``dist_sync_mpi``: MXNet's key-value store on collectives, without servers."""

import numbers
import os
from typing import Any, Dict, Optional

import mxnet as mx

from hvdlite import job
from hvdlite.core import topology
from hvdlite.core.names import owner_name
from hvdlite.core.native import HvdliteValueError
from hvdlite.core.objects import meet
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Sum
from hvdlite.machine import files
from hvdlite.mxnet.collectives import copy, empty
from hvdlite.mxnet.compression import from_params
from hvdlite.mxnet.gradients import Loads, Reducer, agree_on_order, common_order
from hvdlite.mxnet.kvstore_arrays import add_up, by_key, deliver, some_rows, unrecorded
from hvdlite.mxnet.ops import broadcast_
from hvdlite.mxnet.optimizer import DistributedOptimizer
from hvdlite.mxnet.parameters import broadcast_parameters
from hvdlite.mxnet.sparse import allreduce_rows, broadcast_rows, is_sparse
from hvdlite.mxnet.zero_copy import SharedGradients
from hvdlite.numpy import barrier


class _Name(str):
    """A store's name. MXNet looks for "dist" and "_sync" in it to learn what the store does."""

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        return part in ("dist", "_sync") or super().__contains__(part)


class DistSyncMPI(mx.kvstore.KVStore, Loads):
    """What ``mx.kv.create("dist_sync_mpi")`` returns, once ``hvdlite`` is imported.

    Every rank keeps the values that MXNet's servers would keep, and all ranks keep the same values:
    a push sums over all ranks and contexts, and each rank then does what a server would do. So
    every rank must make the same calls in the same order.

    Keys are ints or strings. A method that takes a key also takes a list of keys, with a list of
    values. A method that takes a value also takes a list of values, one for each context
    (``cpu(0)``, ``cpu(1)``, ...) of this process. Calls return at once; a wait for an array waits
    for its result. Only calls with row_sparse arrays wait inside. Creating a store calls
    ``hvd.init()``.

    >>> kv = mx.kv.create("dist_sync_mpi")
    >>> a = mx.nd.ones((2, 3))
    >>> kv.pushpull("gradient", a)  # the sum over ranks, in place
    """

    def __init__(self, name: str = "dist_sync_mpi") -> None:
        job.init()  # not KVStore.__init__, which would wrap a store of MXNet
        self._name_asked_for = _Name(name)
        self._owner, self._met = owner_name("kvstore"), -1
        self._values: Dict[object, mx.nd.NDArray] = {}
        self._sums: Dict[object, mx.nd.NDArray] = {}  # sums of pushed values, for the optimizer
        self._last: Dict[str, mx.nd.NDArray] = {}  # the last array sent under each tensor name
        self._labels: Dict[int, int] = {}  # numbers of a Trainer's keys, the same on every rank
        self._trainer: Any = None  # the gluon Trainer that uses this store
        self.loaded(0)
        self._shared: Optional[SharedGradients] = None  # a Trainer's, until its first pushpull
        self._updater = None
        self._reducer = Reducer()

    def __del__(self) -> None:
        """Do nothing: MXNet has no store to free."""

    @property
    def type(self) -> str:
        """The name that created the store, such as ``dist_sync_mpi`` or ``horovod``."""
        return self._name_asked_for

    @property
    def rank(self) -> int:
        """This process's number in the job, from 0."""
        return topology.rank()

    @property
    def num_workers(self) -> int:
        """The number of processes in the job."""
        return topology.size()

    @property
    def local_rank(self) -> int:
        """This process's number on its host, from 0."""
        return topology.local_rank()

    @staticmethod
    def is_capable(capability: str) -> bool:
        """Tell whether the store has the capability; MXNet knows only one, ``optimizer``."""
        if capability.lower() != mx.kvstore.KVStoreBase.OPTIMIZER:
            raise HvdliteValueError(f"unknown capability '{capability}': expected 'optimizer'")
        return True

    @unrecorded
    def init(self, key, value) -> None:
        """Keep rank 0's value for the key, on every rank."""
        for name, arrays in by_key(key, value).items():
            self._values[name] = self._from_root(name, arrays[0])

    @unrecorded
    def broadcast(self, key, value, out=None, priority: int = 0, root_rank: int = 0) -> None:
        """Put rank ``root_rank``'s value into ``out`` on every rank, and keep it for the key.

        Both ways to call it work: MXNet's ``broadcast(key, value, out, priority)``, and
        ``broadcast(key, value, root_rank, priority)``, which writes into ``value`` itself.
        """
        if isinstance(out, numbers.Integral):
            out, root_rank = None, int(out)
        outs = by_key(key, value if out is None else out)
        if self._trainer and not self._values:  # with static_alloc BatchNorm writes undeclared
            mx.nd.waitall()
        for name, arrays in by_key(key, value).items():
            kept = self._values[name] = self._from_root(name, arrays[0], priority, root_rank)
            deliver(kept, outs[name])

    @unrecorded
    def pushpull(self, key, value=None, out=None, priority: int = 0, ins=None, outs=None) -> None:
        """Put the sum of all ranks' values into ``out``; without ``out`` into ``value``.

        With an optimizer: update the value kept for the key with that sum, and copy the value into
        ``out``. Without an optimizer the store forgets the key's value; push and pull keep it.

        :param ins, outs: other names of ``value`` and ``out``.
        """
        value, out = ins if value is None else value, outs if out is None else out
        outs = None if out is None else by_key(key, out)
        for name, arrays in by_key(key, value).items():
            targets = arrays if outs is None else outs[name]
            if self._updater is None:
                self._allreduce(name, arrays, targets, priority)
            else:
                self._push(name, arrays, priority)
                deliver(self._values[name], targets)

    @unrecorded
    def push(self, key, value, priority: int = 0) -> None:
        """Sum the values of all ranks; keep the sum, or let the optimizer update the kept value."""
        for name, arrays in by_key(key, value).items():
            self._push(name, arrays, priority)

    @unrecorded
    def pull(self, key, out=None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy the value kept for the key into ``out``, dense or row_sparse.

        :param priority, ignore_sparse: ignored: a pull sends nothing.
        """
        for name, arrays in by_key(key, out).items():
            deliver(self._kept(name), arrays)

    @unrecorded
    def row_sparse_pull(self, key, out=None, priority: int = 0, row_ids=None) -> None:
        """Copy some rows of the value kept for the key into the row_sparse array ``out``.

        :param row_ids: an array of row numbers, in any order, or one for each array of ``out``.
        """
        if isinstance(row_ids, mx.nd.NDArray) and isinstance(key, (list, tuple)):
            row_ids = [row_ids] * len(key)
        ids_of = by_key(key, row_ids)
        for name, arrays in by_key(key, out).items():
            kept, ids = self._kept(name), ids_of[name]
            ids = ids * len(arrays) if len(ids) == 1 else ids
            if len(ids) != len(arrays) or not all(map(is_sparse, arrays)):
                raise HvdliteValueError(
                    f"key '{name}': expected row_sparse arrays in out, and one array of row_ids or "
                    f"{len(arrays)}, got {len(ids)}; to get all rows use pull"
                )
            for array, rows in zip(arrays, ids):
                some_rows(name, kept, rows).copyto(array)

    def set_gradient_compression(self, compression_params: dict) -> None:
        """Compress pushed dense arrays on their way, as in ``{'type': 'fp16'}``.

        :raises HvdliteValueError: an unknown type or option; the text lists the known ones.
        """
        try:
            self._reducer = Reducer(from_params(compression_params))
        except ValueError as error:
            raise HvdliteValueError(str(error)) from None

    def set_optimizer(self, optimizer) -> None:
        """Let this optimizer update the kept values with the pushed ones from now on.

        The store uses the optimizer itself, not a copy: a new learning rate counts at the
        next push.
        """
        _check_plain(optimizer)
        self._set_updater(mx.optimizer.get_updater(optimizer))

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states, equal on all ranks, to a file; all ranks may name the same.

        :param dump_optimizer: write the optimizer as well.
        """
        states = self._updater_with_states().get_states(dump_optimizer)
        partial = f"{fname}.{topology.rank()}.{os.urandom(4).hex()}"
        try:
            with files.open_named(partial, "wb") as file:
                file.write(states)
            os.replace(partial, fname)
        finally:
            if os.path.exists(partial):
                os.unlink(partial)

    def load_optimizer_states(self, fname: str) -> None:
        """Read states back; each rank must be able to read the file."""
        updater = self._updater_with_states()
        with open(fname, "rb") as file:
            updater.set_states(file.read())
        self.loaded(1 + updater.optimizer.num_update)

    def loaded(self, digest: int) -> None:
        """Note the digest of loaded states."""
        super().loaded(digest)
        self._optimizer = getattr(self._trainer, "_optimizer", None)

    def serve(self, trainer) -> "DistSyncMPI":
        """Make a new gluon Trainer's parameters equal on all ranks. Collective.

        A parameter whose shape is unknown follows when its shape is known. Gradients that need only
        a sum move into memory that the ranks of a host share.

        :returns: the store for that Trainer. The first Trainer gets this store, each other one a
            new store, because the keys of every Trainer are 0, 1, ...
        """
        _check_plain(trainer._optimizer)
        if self._trainer is not None:
            another = DistSyncMPI(self.type)
            another._reducer = Reducer(self._reducer.compression)
            return another.serve(trainer)
        self._trainer, self._optimizer = trainer, trainer._optimizer
        params = dict(enumerate(trainer._params))
        order = common_order(params)
        self._labels = {index: label for label, index in enumerate(order)}
        named = {f"{label}.{params[i].name}": params[i] for i, label in self._labels.items()}
        broadcast_parameters(named, prefix=f"{self._owner}.start")
        agree_on_order(self._owner, params, self._labels, global_process_set)
        only_summed = not (
            trainer._kvstore_params["update_on_kvstore"] or trainer._compression_params
        )
        if only_summed and topology.size() > 1:
            self._shared = SharedGradients([params[i] for i in order])
        return self

    def _barrier(self) -> None:
        """Wait until every rank has come here."""
        barrier()

    def _set_updater(self, updater) -> None:
        """Let ``updater(key, sum, kept)`` change the kept value in place at each push."""
        self._updater = updater

    def _send_command_to_servers(self, head, body) -> None:
        raise NotImplementedError(
            f"kvstore '{self.type}' has no servers to command: each rank does what they would do"
        )

    def _updater_with_states(self):
        if not hasattr(self._updater, "get_states"):
            raise HvdliteValueError(
                "the kvstore has no optimizer whose states it could save or load: call "
                "set_optimizer first; a Trainer or Module that updates by itself has its own"
            )
        return self._updater

    def _kept(self, key):
        if key not in self._values:
            raise HvdliteValueError(
                f"key '{key}' has no value in the kvstore: call init or broadcast first; a "
                "pushpull without an optimizer keeps no value: use push and pull"
            )
        return self._values[key]

    def _push(self, key, arrays: list, priority: int) -> None:
        kept = self._values.get(key) if self._updater is None else self._kept(key)
        if kept is not None and kept.shape != arrays[0].shape:
            raise HvdliteValueError(f"key '{key}' has shape {kept.shape}, got {arrays[0].shape}")
        if self._updater is None:
            self._values[key] = self._sum(key, arrays, kept, priority)
            return
        self._sums[key] = self._sum(key, arrays, self._sums.get(key), priority)
        self._updater(key, self._sums[key], kept)
        if isinstance(getattr(self._updater, "optimizer", None), mx.optimizer.SGLD):
            self._broadcast(key, kept, priority)  # because each rank has drawn its own noise

    def _allreduce(self, key, arrays: list, targets: list, priority: int) -> None:
        """Put the sum into all targets; with one context this copies nothing."""
        if self._shared:
            shared, self._shared = self._shared, None
            shared.join([self._trainer._params[i] for i in self._labels], self._owner)
        in_place = targets is arrays or len(arrays) == 1
        summed = self._sum(key, arrays, targets[0] if in_place else None, priority)
        deliver(summed, [target for target in targets if target is not summed])
        if self._values.pop(key, None) is not None:
            self._wait_for_other(f"broadcast.{self._name(key)}", None)

    def _sum(self, key, arrays: list, into, priority: int):
        """Return the sum over contexts and ranks, in ``into`` if its type and dtype allow it."""
        name = self._name(key)
        if self._trainer and self._trainer._optimizer is not self._optimizer:
            self.loaded(1 + self._trainer._optimizer.num_update)
        states = self.states_of([name])
        if any(map(is_sparse, arrays)):
            return allreduce_rows(arrays, name, states=states)
        if into is None or is_sparse(into) or into.dtype != arrays[0].dtype:
            into = empty(arrays[0].shape, arrays[0].as_nd_ndarray())
        add_up(arrays, into)
        self._wait_for_other(f"sum.{name}", into)
        self._reducer.allreduce_(into, name, priority, Sum, states=states)
        return into

    def _from_root(self, key, array, priority: int = 0, root_rank: int = 0):
        """Return a new array with the value of rank ``root_rank``."""
        if is_sparse(array):
            return broadcast_rows(array, root_rank, f"{self._name(key)}.broadcast")
        kept = copy(array.as_nd_ndarray())
        self._broadcast(key, kept, priority, root_rank)
        return kept

    def _broadcast(self, key, array, priority: int, root_rank: int = 0) -> None:
        self._wait_for_other(f"broadcast.{self._name(key)}", array)
        broadcast_(array, root_rank, self._name(key), priority)

    def _name(self, key) -> str:
        self._met = meet(self._owner, self._met)
        number = isinstance(key, str) and key.isdigit()  # "1", because the key 1 is another key
        return f"{self._owner}.{repr(key) if number else self._labels.get(key, key)}"

    def _wait_for_other(self, name: str, array) -> None:
        """Wait for the last array of this name; MXNet's engine orders only work on one array.

        :param array: the array to send next, or None.
        """
        last = self._last.pop(name, None)
        if last is not None and last is not array:
            last.wait_to_read()
        if array is not None:
            self._last[name] = array


def _check_plain(optimizer) -> None:
    is_of_mxnet = isinstance(optimizer, mx.optimizer.Optimizer)
    if not is_of_mxnet or isinstance(optimizer, DistributedOptimizer):
        raise HvdliteValueError(
            f"expected a plain MXNet optimizer, got {type(optimizer).__name__}; a "
            "DistributedOptimizer averages by itself: use it with kvstore=None"
        )
