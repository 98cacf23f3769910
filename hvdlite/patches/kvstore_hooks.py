"""Registers the kvstore ``dist_sync_mpi`` with MXNet, and replaces some functions of MXNet.

This module imports neither MXNet nor MPI; creating a store imports the store's module. The replaced
functions act differently for this store only; docs/internals.md gives the reasons. Also,
``mx.kv.create`` now refuses unknown names, because MXNet would create an unintended store. Without
servers, it refuses the names of stores that need servers.
"""

import functools
import os
import sys
import warnings

NAME = "dist_sync_mpi"
_NAMES = (NAME, "horovod")  # "horovod" replaces MXNet 2's store, which ignores a single context
# `hvdliterun --mode mpi` starts no servers, so these names then mean hvdlite's store, too.
_SYNCHRONOUS = ("dist", "dist_sync", "dist_device_sync", "dist_sync_device")
_ASYNCHRONOUS = ("dist_async", "dist_device_async", "dist_async_device")
# With these variables MXNet finds its servers. If one of them is not set, there are no servers.
_OF_SERVERS = ("DMLC_ROLE", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_NUM_SERVER",
               "DMLC_NUM_WORKER")  # fmt: skip
# Names of MXNet's stores for one process.
_LOCAL = ("local", "device", "nccl", "teststore", "local_allreduce_cpu", "local_allreduce_device",
          "local_update_cpu")  # fmt: skip


class _Maker:
    """The entry for a name in MXNet's registry; calling it creates a store."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self):
        from hvdlite.mxnet.kvstore import DistSyncMPI

        return DistSyncMPI(self._name)


def register(mxnet) -> None:
    """Register the store with the imported MXNet; a second call does nothing."""
    registry = mxnet.kvstore.KVStoreBase.kv_registry
    if NAME in registry:
        return
    registry.update({name: _Maker(name) for name in _NAMES})
    if os.environ.get("HVDLITE_KVSTORE_MODE") == "mpi":
        registry.update({name: _Maker(name) for name in _SYNCHRONOUS})
        registry.update(dict.fromkeys(_ASYNCHRONOUS, _refuse_asynchronous))
    mxnet.kvstore.create = mxnet.kvstore.base.create = _create(mxnet.kvstore.create, registry)
    users = [mxnet.model, mxnet.gluon.trainer]
    if hasattr(mxnet, "module"):  # MXNet 2 has no Module
        users.append(mxnet.module.module)
        for user in (mxnet.model, mxnet.module.module):
            user._initialize_kvstore = _initialize_kvstore(user._initialize_kvstore)
    for user in users:
        user._create_kvstore = _create_kvstore(user._create_kvstore, registry)
    trainer = mxnet.gluon.Trainer
    trainer.__init__ = _trainer_init(trainer.__init__, registry)
    trainer._check_and_rescale_grad = _check_and_rescale_grad(trainer._check_and_rescale_grad)
    trainer.allreduce_grads = _allreduce_grads(trainer.allreduce_grads)
    for name in ("set_config", "set_state", "dump", "pause", "resume"):
        setattr(mxnet.profiler, name, _of_servers(getattr(mxnet.profiler, name), mxnet.profiler))


def _refuse_asynchronous():
    raise ValueError(
        "asynchronous kvstores need MXNet's servers: start the job with `hvdliterun --mode ps`, or "
        "use 'dist_sync'"
    )


def _is_ours(store) -> bool:
    module = sys.modules.get("hvdlite.mxnet.kvstore")
    return module is not None and isinstance(store, module.DistSyncMPI)


def _as_store(kvstore, registry):
    """Return a new store if ``kvstore`` is one of hvdlite's names; otherwise return ``kvstore``."""
    maker = registry.get(kvstore.lower()) if isinstance(kvstore, str) else None
    return maker() if isinstance(maker, _Maker) else kvstore


def _check_known(name: str, registry) -> None:
    """Refuse a name that makes MXNet create an unintended store or raise an obscure error."""
    if name in registry or name in _LOCAL:
        return
    if name not in (*_SYNCHRONOUS, *_ASYNCHRONOUS):
        raise ValueError(
            f"kvstore '{name}' is unknown to MXNet: for training on many ranks use '{NAME}'"
        )
    missing = [variable for variable in _OF_SERVERS if not os.environ.get(variable)]
    if missing:
        raise ValueError(
            f"kvstore '{name}' needs MXNet's servers, and there are none ({missing[-1]} is not "
            f"set): use '{NAME}', which needs no servers, or start the job with servers, by "
            "`hvdliterun -n 2 -s 2 python train.py`"
        )
    servers = sys.modules.get("hvdlite.mxnet.servers")
    if servers and servers.has_store():
        raise ValueError(servers.only_one(name))


def _create(create, registry):
    @functools.wraps(create)
    def create_known(name="local"):
        if isinstance(name, str):
            _check_known(name.lower(), registry)
        return create(name)

    return create_known


def _trainer_init(init, registry):
    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        init(self, *args, **kwargs)
        config = self._kvstore_params
        store = _as_store(config["kvstore"], registry)
        config["kvstore"] = store.serve(self) if _is_ours(store) else store

    return __init__


def _check_and_rescale_grad(check):
    @functools.wraps(check)
    def check_and_rescale_grad(self, scale):
        store = self._kvstore_params["kvstore"]  # MXNet sets self._kvstore later in the first step
        if _is_ours(store):
            store.rescale = scale
        if _is_ours(self._kvstore):
            self._optimizer.rescale_grad = scale  # the store uses this optimizer object
        else:
            check(self, scale)

    return check_and_rescale_grad


def _allreduce_grads(allreduce):
    @functools.wraps(allreduce)
    def allreduce_grads(self):
        store = self._kvstore_params["kvstore"]
        if _is_ours(store):
            store.rescale = None  # because the script gives the batch size later, to update()
        allreduce(self)

    return allreduce_grads


def _create_kvstore(create, registry):
    @functools.wraps(create)
    def create_kvstore(kvstore, num_device, arg_params):
        if isinstance(kvstore, str):
            # MXNet searches the name for 'dist' before it converts the name to lower case.
            kvstore = kvstore.lower()
            _check_known(kvstore, registry)
        store, on_store = create(_as_store(kvstore, registry), num_device, arg_params)
        if _is_ours(store) and "MXNET_UPDATE_ON_KVSTORE" not in os.environ:
            on_store = any(array.stype != "default" for array in arg_params.values())
        return store, on_store

    return create_kvstore


def _initialize_kvstore(initialize):
    @functools.wraps(initialize)
    def initialize_kvstore(kvstore, param_arrays, arg_params, param_names, update_on_kvstore):
        if not _is_ours(kvstore):
            return initialize(kvstore, param_arrays, arg_params, param_names, update_on_kvstore)
        for name, arrays in zip(param_names, param_arrays):
            kvstore.broadcast(name, arg_params[name], out=[arg_params[name], *arrays])

    return initialize_kvstore


def _of_servers(call, profiler):
    @functools.wraps(call)
    def without_servers(*args, **kwargs):
        asked = "server" in (*args, kwargs.get("profile_process"))
        if not asked or profiler.profiler_kvstore_handle:  # set if a store with servers exists
            return call(*args, **kwargs)
        warnings.warn(
            "there are no servers to profile, because each rank does the work of a server: use "
            "profile_process='worker'",
            stacklevel=2,
        )
        return None

    return without_servers
