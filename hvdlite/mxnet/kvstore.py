"""The kvstore ``dist_sync_mpi``: MXNet's key-value store with collectives instead of servers."""

import numbers
import os
from typing import Any, Dict, Optional

import mxnet as mx

from hvdlite import job
from hvdlite.core import topology
from hvdlite.core.names import owner_name
from hvdlite.core.native import HvdliteValueError
from hvdlite.core.process_set import global_process_set
from hvdlite.core.reduce_ops import Sum
from hvdlite.machine import files
from hvdlite.mxnet.changes import OfStore
from hvdlite.mxnet.collectives import empty
from hvdlite.mxnet.compression import from_params
from hvdlite.mxnet.gradients import Reducer, agree_on_order, common_order
from hvdlite.mxnet.key_tensors import KeyTensors
from hvdlite.mxnet.kvstore_arrays import add_up, by_key, check_plain, deliver, some_rows, unrecorded
from hvdlite.mxnet.loads import Loads
from hvdlite.mxnet.parameters import broadcast_parameters
from hvdlite.mxnet.sparse import allreduce_rows, is_sparse
from hvdlite.mxnet.zero_copy import SharedGradients
from hvdlite.numpy import barrier


class _Name(str):
    """A store's name, in which MXNet's searches for "dist" and "_sync" always succeed."""

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        return part in ("dist", "_sync") or super().__contains__(part)


class DistSyncMPI(mx.kvstore.KVStore, Loads):
    """The store that ``mx.kv.create("dist_sync_mpi")`` returns if ``hvdlite`` is imported.

    Every rank keeps a copy of the values that MXNet's servers would keep. A push sums over all
    ranks and contexts, and then each rank updates its copy as a server would do. So every rank must
    make the same calls in the same order.

    Keys are ints or strings. A method that takes a key also takes a list of keys, with a list of
    values. A method that takes a value also takes a list of values, one for each context
    (``cpu(0)``, ``cpu(1)``, ...) of this process. Calls return immediately, and reading an array
    waits for its result; but calls with row_sparse arrays wait for the other ranks. The constructor
    calls ``hvd.init()``.

    >>> kv = mx.kv.create("dist_sync_mpi")
    >>> a = mx.nd.ones((2, 3))
    >>> kv.pushpull("gradient", a)  # the sum over ranks, in place
    """

    def __init__(self, name: str = "dist_sync_mpi") -> None:
        job.init()  # KVStore.__init__ is not called: it needs the handle of a store of MXNet
        self._name_asked_for = _Name(name)
        self._tensors = KeyTensors(owner_name("kvstore"))
        self._values: Dict[object, mx.nd.NDArray] = {}
        self._sums: Dict[object, mx.nd.NDArray] = {}  # sums of pushed values, for the optimizer
        self._trainer: Any = None  # the gluon Trainer that uses this store
        self._compared: Optional[OfStore] = None  # the Trainer's parameters
        self.loaded(0)
        self._shared: Optional[SharedGradients] = None  # used until the Trainer's first pushpull
        self._updater = None
        self._reducer = Reducer()

    def __del__(self) -> None:
        """Do nothing: KVStore.__del__ would free a handle, and this store has none."""

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
        """Return True for ``optimizer``, the only capability that MXNet asks for."""
        if capability.lower() != mx.kvstore.KVStoreBase.OPTIMIZER:
            raise HvdliteValueError(f"unknown capability '{capability}': expected 'optimizer'")
        return True

    @unrecorded
    def init(self, key, value) -> None:
        """Store rank 0's value under the key on every rank."""
        for name, arrays in by_key(key, value).items():
            self._values[name] = self._tensors.from_root(name, arrays[0])

    @unrecorded
    def broadcast(self, key, value, out=None, priority: int = 0, root_rank: int = 0) -> None:
        """Copy rank ``root_rank``'s value to ``out`` on every rank, and store it under the key.

        Two forms work: MXNet's ``broadcast(key, value, out, priority)``, and
        ``broadcast(key, value, root_rank, priority)``, which overwrites ``value``.
        """
        if isinstance(out, numbers.Integral):
            out, root_rank = None, int(out)
        outs = by_key(key, value if out is None else out)
        if self._trainer and not self._values:
            mx.nd.waitall()  # because MXNet's engine does not know all writes of BatchNorm
        for name, arrays in by_key(key, value).items():
            kept = self._values[name] = self._tensors.from_root(
                name, arrays[0], priority, root_rank
            )
            deliver(kept, outs[name])

    @unrecorded
    def pushpull(self, key, value=None, out=None, priority: int = 0, ins=None, outs=None) -> None:
        """Write the sum of all ranks' values to ``out``, or to ``value`` if ``out`` is None.

        If the store has an optimizer, the optimizer updates the stored value with the sum, and
        ``out`` gets the new value. Otherwise the store deletes its value for the key.

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
        """Store the sum of all ranks' values, or let the optimizer apply the sum to the value."""
        for name, arrays in by_key(key, value).items():
            self._push(name, arrays, priority)

    @unrecorded
    def pull(self, key, out=None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copy the stored value of the key to ``out``, which may be dense or row_sparse.

        :param priority, ignore_sparse: have no effect, because a pull is a local copy.
        """
        for name, arrays in by_key(key, out).items():
            deliver(self._value_of(name), arrays)

    @unrecorded
    def row_sparse_pull(self, key, out=None, priority: int = 0, row_ids=None) -> None:
        """Copy some rows of the stored value of the key to the row_sparse array ``out``.

        :param row_ids: row numbers in any order: one array, or an array for each array of ``out``.
        """
        if isinstance(row_ids, mx.nd.NDArray) and isinstance(key, (list, tuple)):
            row_ids = [row_ids] * len(key)
        ids_of = by_key(key, row_ids)
        for name, arrays in by_key(key, out).items():
            kept, ids = self._value_of(name), ids_of[name]
            ids = ids * len(arrays) if len(ids) == 1 else ids
            if len(ids) != len(arrays) or not all(map(is_sparse, arrays)):
                raise HvdliteValueError(
                    f"key '{name}': expected row_sparse arrays in out, and 1 or {len(arrays)} "
                    f"arrays of row_ids, got {len(ids)}; to get all rows, call pull"
                )
            for array, rows in zip(arrays, ids):
                some_rows(name, kept, rows).copyto(array)

    def set_gradient_compression(self, compression_params: dict) -> None:
        """Send pushed dense arrays in compressed form, for example ``{'type': 'fp16'}``.

        :raises HvdliteValueError: an unknown type or option; the text lists the known types.
        """
        try:
            self._reducer = Reducer(from_params(compression_params))
        except ValueError as error:
            raise HvdliteValueError(str(error)) from None

    def set_optimizer(self, optimizer) -> None:
        """From now on, let the optimizer update a stored value with each sum of pushed values.

        The store does not copy the optimizer: a new learning rate has effect at the next push.
        """
        check_plain(optimizer)
        self._set_updater(mx.optimizer.get_updater(optimizer))

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Write the optimizer's states, equal on all ranks, to a file; ranks may share the file.

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
        """Load the optimizer's states on this rank, from a file that this rank can read."""
        updater = self._updater_with_states()
        with open(fname, "rb") as file:
            updater.set_states(file.read())
        self.loaded(1 + updater.optimizer.num_update)

    def loaded(self, digest: int) -> None:
        """Set the digest of loaded states, and remember the optimizer that has them."""
        super().loaded(digest)
        self._optimizer = getattr(self._trainer, "_optimizer", None)

    def serve(self, trainer) -> "DistSyncMPI":
        """Make a new gluon Trainer's parameters equal on all ranks. Collective.

        A parameter of unknown shape is broadcast when its shape is known. If the store only sums
        gradients, the store moves them into memory that the ranks of a host share.

        :returns: the store for the Trainer: this store for the first Trainer, a new store for each
            other Trainer, because every Trainer uses the keys 0, 1, ...
        """
        check_plain(trainer._optimizer)
        if self._trainer is not None:
            another = DistSyncMPI(self.type)
            another._reducer = Reducer(self._reducer.compression)
            return another.serve(trainer)
        self._trainer, self._optimizer = trainer, trainer._optimizer
        params, owner = dict(enumerate(trainer._params)), self._tensors.owner
        order = common_order(params)
        labels = self._tensors.labels = {index: label for label, index in enumerate(order)}
        self._compared = OfStore(owner, trainer, labels)
        named = {f"{label}.{params[i].name}": params[i] for i, label in labels.items()}
        broadcast_parameters(named, prefix=f"{owner}.start")
        agree_on_order(owner, params, labels, global_process_set)
        only_summed = not (
            trainer._kvstore_params["update_on_kvstore"] or trainer._compression_params
        )
        if only_summed and topology.size() > 1:
            self._shared = SharedGradients([params[i] for i in order])
        return self

    def _barrier(self) -> None:
        """Wait until every rank has made this call."""
        barrier()

    def _set_updater(self, updater) -> None:
        """At each push, let ``updater(key, sum, kept)`` change the stored value in place."""
        self._updater = updater

    def _send_command_to_servers(self, head, body) -> None:
        raise NotImplementedError(
            f"kvstore '{self.type}' has no servers that could get a command: each rank does the "
            "work of a server"
        )

    def _updater_with_states(self):
        if not hasattr(self._updater, "get_states"):
            raise HvdliteValueError(
                "the kvstore has no optimizer states to save or load: call set_optimizer first. If "
                "a Trainer or Module updates the weights, save or load that object's states"
            )
        return self._updater

    def _value_of(self, key):
        if key not in self._values:
            raise HvdliteValueError(
                f"key '{key}' has no value in the kvstore: call init or broadcast first; a "
                "pushpull without an optimizer keeps no value: use push and pull"
            )
        return self._values[key]

    def _push(self, key, arrays: list, priority: int) -> None:
        self._compare(key)
        kept = self._values.get(key) if self._updater is None else self._value_of(key)
        if kept is not None and kept.shape != arrays[0].shape:
            raise HvdliteValueError(
                f"key '{key}' has shape {kept.shape}, got {arrays[0].shape}: push arrays of the "
                "stored value's shape"
            )
        if self._updater is None:
            self._values[key] = self._sum(key, arrays, kept, priority)
            return
        self._sums[key] = self._sum(key, arrays, self._sums.get(key), priority)
        self._updater(key, self._sums[key], kept)
        if isinstance(getattr(self._updater, "optimizer", None), mx.optimizer.SGLD):
            # SGLD adds random noise on each rank, so all ranks take rank 0's result
            self._tensors.broadcast(key, kept, priority)

    def _allreduce(self, key, arrays: list, targets: list, priority: int) -> None:
        """Write the sum to all targets. With one context the sum is in place, without a copy."""
        self._compare(key)
        if self._shared:
            shared, self._shared = self._shared, None
            params = [self._trainer._params[i] for i in self._tensors.labels]
            shared.join(params, self._tensors.owner)
        in_place = targets is arrays or len(arrays) == 1
        summed = self._sum(key, arrays, targets[0] if in_place else None, priority)
        deliver(summed, [target for target in targets if target is not summed])
        if self._values.pop(key, None) is not None:
            self._tensors.wait_for_broadcast(key)

    def _compare(self, key) -> None:
        if self._compared and key in self._tensors.labels:
            self._tensors.meet()
            self._compared.compare(key, self._updater is not None)

    def _sum(self, key, arrays: list, into, priority: int):
        """Return the sum over contexts and ranks: ``into`` if its dtype fits, or a new array."""
        name = self._tensors.name(key)
        if self._trainer and self._trainer._optimizer is not self._optimizer:
            self.loaded(1 + self._trainer._optimizer.num_update)
        states = self.states_of([name], global_process_set)
        if any(map(is_sparse, arrays)):
            return allreduce_rows(arrays, name, states=states)
        if into is None or is_sparse(into) or into.dtype != arrays[0].dtype:
            into = empty(arrays[0].shape, arrays[0].as_nd_ndarray())
        add_up(arrays, into)
        self._tensors.wait_for_other(f"sum.{name}", into)
        self._reducer.allreduce_(into, name, priority, Sum, states=states)
        return into
