"""This process as a worker of MXNet's servers, which it needs for one thing: to find the others.

MXNet's store ``dist_sync`` numbers the workers, and its servers tell all of them one value of
worker 0. MXNet can make one such store a process; a second one waits for ever. The store is kept
until this process ends: as its workers let go of it, the servers and the scheduler end, and
launch.py with them.
"""

import ctypes
import gc
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List

import mxnet as mx
from mxnet.base import _LIB, KVStoreHandle, c_str, check_call

from hvdlite.core import start
from hvdlite.core.listening import networks
from hvdlite.core.log import logger
from hvdlite.core.native import HvdliteError
from hvdlite.launch import probe
from hvdlite.lifecycle import mesh, script_end
from hvdlite.lifecycle.limits import INIT

WARN_SECONDS = 5.0
KEY, MOST_BYTES = 0, 512  # of worker 0's value


class _Store(mx.kvstore.KVStore):
    def __del__(self) -> None:
        """Do nothing: to free it waits for the other workers, which only go() may."""


_kept: List[_Store] = []
_calls: List[threading.Thread] = []  # of MXNet's functions that may wait for ever


def is_kept() -> bool:
    """Tell whether this process has its one store of MXNet's servers for itself."""
    return bool(_kept)


def come(patience: float) -> start.Place:
    """Make the store, and return where the workers meet. Collective; a second call does nothing.

    :param patience: seconds until all workers and servers must be there; 0: no limit.
    :raises HvdliteError: they are not; the program has a store of its own.
    """
    at = f"{os.environ['DMLC_PS_ROOT_URI']}:{os.environ['DMLC_PS_ROOT_PORT']}"
    workers, servers = os.environ["DMLC_NUM_WORKER"], os.environ["DMLC_NUM_SERVER"]
    if servers == "0":
        raise HvdliteError(
            f"init(): {at} is MXNet's scheduler, but there is no server (DMLC_NUM_SERVER=0): "
            f"workers meet by one. Start the job by `hvdliterun -n {workers} python train.py`, or "
            "by launch.py with `-s 1`"
        )
    if not _kept:
        _refuse_other_stores()
    whom = f"{workers} workers and {servers} servers that MXNet's scheduler at {at} expects"
    found: start.Place = _within(_meet, patience, f"init() waits for the {whom}", INIT)
    return found


def go(patience: float) -> None:
    """Let go of the store. Collective, at the end of the process.

    :param patience: seconds; 0: no limit.
    """
    if not _kept:
        return
    store = _kept.pop()
    what = "MXNet's servers and launch.py end when the last worker does"
    try:
        _within(lambda: check_call(_LIB.MXKVStoreFree(store.handle)), patience, what, "")
    except Exception as error:  # MXNet's, too: the end goes on
        print(f"hvdlite: {error}: a worker may have died. End them by Ctrl-C", file=sys.stderr)


def end() -> None:
    """End this process if MXNet still waits in it: at Python's own end MXNet would abort it."""
    if any(call.is_alive() for call in _calls):
        failed = script_end.failure()
        script_end.flush()
        os._exit(failed.code if failed else 0)


def _refuse_other_stores() -> None:
    for each in gc.get_objects():
        if type(each) is mx.kvstore.KVStore and "dist" in each.type:
            raise HvdliteError(f"init(): {only_one(each.type)}")


def only_one(kind: str) -> str:
    """Return the text of an error: one store of MXNet's servers is all that there can be."""
    return (
        f"kvstore '{kind}' of MXNet's servers and hvdlite's ranks go together only where "
        f"hvdliterun starts both: `hvdliterun -n {os.environ['DMLC_NUM_WORKER']} "
        f"-s {os.environ['DMLC_NUM_SERVER']} python train.py`. Or use 'dist_sync_mpi' alone"
    )


def _meet() -> start.Place:
    if not _kept:
        handle = KVStoreHandle()
        check_call(_LIB.MXKVStoreCreate(c_str("dist_sync"), ctypes.byref(handle)))
        _kept.append(_Store(handle))
        own = {"host": _own_address(), "port": start.free_port(), "job": os.urandom(16).hex()}
        _tell(_kept[0], own)
    told = _told(_kept[0])
    size, ports = _kept[0].num_workers, start.ports_from(told["port"])
    return start.Place(start.SERVERS, _kept[0].rank, size, told["host"], ports, told["job"])


def _own_address() -> str:
    """Return where the other workers reach this one, should it be rank 0."""
    wanted = networks(os.environ)
    if wanted:
        return mesh.chosen(wanted)
    scheduler = os.environ["DMLC_PS_ROOT_URI"]
    return os.environ.get("DMLC_NODE_HOST") or probe.source_towards(scheduler) or scheduler


def _tell(store: _Store, value: Dict[str, Any]) -> None:
    """Have the servers keep worker 0's value. Collective."""
    text = json.dumps(value).encode().ljust(MOST_BYTES)
    store.init(KEY, mx.nd.array(list(text)))


def _told(store: _Store) -> Dict[str, Any]:
    text = mx.nd.zeros(MOST_BYTES)
    store.pull(KEY, out=text)
    return json.loads(bytes(text.asnumpy().astype("uint8")))


def _within(call: Callable[[], Any], patience: float, what: str, variable: str) -> Any:
    """Return what the call does, in a thread: MXNet waits without end, and Ctrl-C must get through.

    :param what: a sentence for the user, after some seconds.
    """
    ended: List[Callable[[], Any]] = []
    thread = threading.Thread(target=lambda: ended.append(_result_of(call)), daemon=True)
    began, warn_at = time.monotonic(), WARN_SECONDS
    _calls.append(thread)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        waited = time.monotonic() - began
        if thread.is_alive() and patience and waited >= patience:
            sets = f". {variable} sets how long it waits" if variable else ""
            raise HvdliteError(f"{what}: not all have come in {waited:.0f} s{sets}")
        if thread.is_alive() and waited >= warn_at:
            warn_at = float("inf")
            logger.warning("%s: not all have come in %.0f s", what, waited)
    return ended[0]()


def _result_of(call: Callable[[], Any]) -> Callable[[], Any]:
    try:
        value = call()
    except BaseException as error:
        raised = error  # the name ``error`` ends with this block

        def throw() -> Any:
            raise raised

        return throw
    return lambda: value


os.register_at_fork(after_in_child=_kept.clear)
os.register_at_fork(after_in_child=_calls.clear)
