"""Lets workers of MXNet's parameter servers find each other, so that they can form a job.

MXNet's store ``dist_sync`` numbers the workers, and its servers send a value of worker 0 to all
workers. A process can make one such store; a second store would wait forever. The process keeps its
store until the process ends, because freeing the store tells the servers, the scheduler and
launch.py to end.
"""

import ctypes
import gc
import os
import socket
import sys
import threading
import time
from datetime import timedelta
from typing import Any, Callable, List, Optional

import mxnet as mx
from mxnet.base import _LIB, KVStoreHandle, c_str, check_call

from hvdlite.core import places
from hvdlite.core.addresses import address_on
from hvdlite.core.limits import INIT
from hvdlite.core.listening import networks
from hvdlite.core.log import logger
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import HvdliteError
from hvdlite.exit import script_end
from hvdlite.machine import probe

WARN_SECONDS = 5.0
KEY, MOST_BYTES = 0, 512  # key and largest size in bytes of the value that worker 0 sends


class _Store(mx.kvstore.KVStore):
    def __del__(self) -> None:
        """Do nothing: freeing the store waits for all workers, so only leave() frees the store."""


class _OneValue:
    """A store of one value, which worker 0 sets and MXNet's servers keep. ``set`` is collective."""

    def __init__(self, store: _Store) -> None:
        self._store = store

    def set(self, key: str, value: str) -> None:
        self._store.init(KEY, mx.nd.array(list(value.encode().ljust(MOST_BYTES))))

    def wait(self, keys: List[str], timeout: timedelta) -> None:
        if self._store.rank:
            self.set(keys[0], "")

    def get(self, key: str) -> bytes:
        text = mx.nd.zeros(MOST_BYTES)
        self._store.pull(KEY, out=text)
        return bytes(text.asnumpy().astype("uint8"))


class _Worker(ModuleState):
    """What this process keeps as a worker of MXNet's servers."""

    def begin(self) -> None:
        self.store: Optional[_Store] = None  # the store that hvdlite has made and not freed yet
        self.place: Optional[places.Place] = None  # the address at which the workers meet
        # The threads call functions of MXNet that may wait forever.
        self.threads: List[threading.Thread] = []

    def begin_child(self) -> None:
        self.store, self.threads = None, []


_worker = _Worker()


def has_store() -> bool:
    """Return True if hvdlite has made the one ``dist_sync`` store that this process can have."""
    return _worker.store is not None


def rendezvous(patience: float) -> places.Place:
    """Make the store, once; return the place where the workers meet. Collective.

    :param patience: how many seconds to wait for all workers and servers; 0: no limit.
    :raises HvdliteError: workers or servers are missing; or the program has its own store.
    """
    at = f"{os.environ['DMLC_PS_ROOT_URI']}:{os.environ['DMLC_PS_ROOT_PORT']}"
    workers, servers = os.environ["DMLC_NUM_WORKER"], os.environ["DMLC_NUM_SERVER"]
    if servers == "0":
        raise HvdliteError(
            f"init(): {at} is MXNet's scheduler, but there is no server (DMLC_NUM_SERVER=0), and "
            "workers need a server to find each other. Start the job by "
            f"`hvdliterun -n {workers} python train.py`, or by launch.py with `-s 1`"
        )
    for each in gc.get_objects() if not has_store() else ():
        if type(each) is mx.kvstore.KVStore and "dist" in each.type:
            raise HvdliteError(f"init(): {only_one(each.type)}")
    what = (
        f"init() waits for the {workers} workers and {servers} servers that MXNet's scheduler at "
        f"{at} expects: not all of them have connected"
    )
    found: places.Place = _within(_meet, patience, what, INIT, _scheduler)
    return found


def _scheduler() -> str:
    """Return an error text if nothing listens at the scheduler's port: MXNet reports no error."""
    place = os.environ["DMLC_PS_ROOT_URI"], int(os.environ["DMLC_PS_ROOT_PORT"])
    try:
        socket.create_connection(place, WARN_SECONDS).close()
    except OSError as error:
        return (
            f". The scheduler is not there ({error}): it has not started, or it has ended; if its "
            "output has `bind failed`, another job has the port: start the job again"
        )
    return ""


def leave(patience: float) -> None:
    """Free the store, at the end of the process. Collective.

    :param patience: how many seconds to wait for the other workers; 0: no limit.
    """
    store, _worker.store = _worker.store, None
    if store is None:
        return
    what = (
        "MXNet's servers and launch.py end when the last worker ends: some workers have not ended"
    )
    try:
        _within(lambda: check_call(_LIB.MXKVStoreFree(store.handle)), patience, what, "")
    except Exception as error:  # an error of MXNet must not stop the end of this process
        print(f"hvdlite: {error}. A worker may have died: end launch.py by Ctrl-C", file=sys.stderr)


def end() -> None:
    """If a thread waits in MXNet, end this process here, because Python's normal exit aborts."""
    if any(call.is_alive() for call in _worker.threads):
        failed = script_end.failure()
        script_end.flush()
        os._exit(failed.code if failed else 0)


def only_one(kind: str) -> str:
    """Return an error text: a process can have only one store of MXNet's servers."""
    return (
        f"kvstore '{kind}' of MXNet's servers and hvdlite's ranks work together only if "
        f"hvdliterun starts both: `hvdliterun -n {os.environ['DMLC_NUM_WORKER']} "
        f"-s {os.environ['DMLC_NUM_SERVER']} python train.py`. Or use 'dist_sync_mpi' alone"
    )


def _meet() -> places.Place:
    if _worker.store is None:
        handle = KVStoreHandle()
        check_call(_LIB.MXKVStoreCreate(c_str("dist_sync"), ctypes.byref(handle)))
        _worker.store = store = _Store(handle)
        facts = store.rank, store.num_workers, _own_address()
        _worker.place = places.place_by_store(
            _OneValue(store), places.SERVERS, *facts, timedelta.max
        )
    assert _worker.place is not None
    return _worker.place


def _own_address() -> str:
    """Return the address at which other workers can connect to this worker, if it is rank 0."""
    wanted = networks(os.environ)
    if wanted:
        return address_on(wanted)
    scheduler = os.environ["DMLC_PS_ROOT_URI"]
    return os.environ.get("DMLC_NODE_HOST") or probe.source_towards(scheduler) or scheduler


def _within(
    call: Callable[[], Any], patience: float, what: str, variable: str,
    why: Callable[[], str] = str,
) -> Any:  # fmt: skip
    """Run ``call`` in a thread and return its result. MXNet's C functions may block Ctrl-C.

    :param what: the beginning of the warning or error text; the number of seconds follows.
    :param variable: the variable with which the user can change ``patience``; "": none.
    :param why: returns the end of the text.
    """
    ended: List[Callable[[], Any]] = []
    thread = threading.Thread(target=lambda: ended.append(_result_of(call)), daemon=True)
    began, warn_at = time.monotonic(), WARN_SECONDS
    _worker.threads.append(thread)
    thread.start()
    while thread.is_alive():
        thread.join(0.1)
        waited = time.monotonic() - began
        if thread.is_alive() and patience and waited >= patience:
            longer = f". To wait longer, set {variable}" if variable else ""
            raise HvdliteError(f"{what} after {waited:.0f} s{longer}{why()}")
        if thread.is_alive() and waited >= warn_at:
            warn_at = float("inf")
            logger.warning("%s after %.0f s%s", what, waited, why())
    return ended[0]()


def _result_of(call: Callable[[], Any]) -> Callable[[], Any]:
    try:
        value = call()
    except BaseException as error:
        raised = error  # kept, because ``error`` is deleted at the end of this block

        def throw() -> Any:
            raise raised

        return throw
    return lambda: value
