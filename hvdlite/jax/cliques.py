"""The communicators of XLA's programs: the C library learns their members, and their groups open.

XLA makes a communicator by MPI_Comm_split, which tells a process its own place but not the other
members. So each executable is read when a client of jaxlib makes it, and for each new list of
members XLA makes its communicator at once, while the library knows the list. Nothing is sent.
Before the first run of a program its ranks meet, and open a group of the core for each list.
"""

import contextlib
import ctypes
import functools
import hashlib
import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from hvdlite.core import registry, topology
from hvdlite.core.native import call, lib
from hvdlite.jax import replica_groups
from hvdlite.jax.library import PATH, core_function

TARGET = "hvdlite_collective"  # XLA's name of hvdlite's custom calls
_MAKERS = "compile_and_load", "deserialize_executable"
_LOOK_MS = 500


@dataclass(eq=False)
class _Clique:
    """A communicator of XLA's."""

    address: ctypes.c_void_p  # in the library
    ranks: List[int]  # in the order of the devices
    thread: Optional[threading.Thread] = None  # runs its programs
    opened: Any = None  # True: its group is open; an exception: opening has failed


class Cliques:
    """The communicators of this process, and the threads that use them.

    XLA does not say which program a collective is of, so two threads could swap theirs, where ranks
    run them in different orders. So each communicator is of one thread. ``jit`` runs a program
    without Python, once it has run it in the same context: so each thread has a context of its own.

    :param patience: seconds that a rank waits for the others before a program's first run.
    """

    def __init__(self, patience: float) -> None:
        self._library: Any = ctypes.CDLL(PATH)
        self._library.hvdlite_jax_announce.restype = ctypes.c_void_p
        self._library.hvdlite_jax_asked.restype = ctypes.c_bool
        self._rank, self._patience = topology.rank(), patience
        self._library.hvdlite_jax_begin(core_function, self._rank, topology.size())
        self._known: Dict[Tuple[int, ...], _Clique] = {}  # by the numbers of the devices
        self._programs: Dict[int, List[_Clique]] = {}  # by id()
        self._lock = threading.RLock()
        self._warming = threading.local()
        self._context, self._contexts = jax.make_user_context(), itertools.count(1)

    def watch(self, client: type, executable: type) -> None:
        """Learn of every executable that a client of jaxlib makes, and of its first run."""
        for name in _MAKERS:
            setattr(client, name, self._watched(getattr(client, name)))
        execute = executable.execute_sharded  # type: ignore[attr-defined]

        @functools.wraps(execute)
        def checked(program, *args, **named):
            cliques = self._programs.get(id(program), ())
            for step in self._check_thread, self._open:
                for clique in cliques:
                    step(clique)
            return execute(program, *args, **named)

        executable.execute_sharded = checked  # type: ignore[attr-defined]

    def enter_thread(self) -> None:
        """Let this thread run programs of several processes."""
        if self._context.value is None:
            self._context(next(self._contexts)).__enter__()

    def _watched(self, make):
        @functools.wraps(make)
        def making(client, what, *args, **named):
            executable = make(client, what, *args, **named)
            devices = named.get("executable_devices", args[0] if args else ())
            # an executable that is gone may have had the same id()
            self._programs.pop(id(executable), None)
            if not getattr(self._warming, "now", False) and hasattr(executable, "hlo_modules"):
                self._announce(executable, list(devices))
            return executable

        return making

    def _announce(self, executable, devices: List[Any]) -> None:
        """Have XLA make the communicators that a program needs in this process.

        :param devices: the devices of the program, in its order.
        :raises RuntimeError: a collective can't be carried out; docs/jax.md says which.
        """
        several = len({device.process_index for device in devices}) > 1
        cliques = self._programs[id(executable)] = []
        for module in executable.hlo_modules():
            text = module.to_string()
            if several and f'custom_call_target="{TARGET}"' in text:
                raise RuntimeError(
                    "hvdlite.jax: a program of several processes calls a collective of hvd, which "
                    "need a program of one process: use jax.lax.psum and the like, or pass jit "
                    "only arrays of this process"
                )
            for group in replica_groups.of(text, len(devices)):
                members = [devices[i] for i in group]
                ranks = [device.process_index for device in members]
                if self._rank in ranks:
                    with self._lock:
                        clique = self._clique(members, ranks)
                    cliques += [clique] * (len(ranks) > 1)

    def _clique(self, devices: Sequence[Any], ranks: List[int]) -> _Clique:
        """Return the communicator of these devices; have XLA make a new one."""
        key = tuple(device.id for device in devices)
        if key in self._known:
            return self._known[key]
        if len(set(ranks)) < len(ranks):
            raise RuntimeError(
                "hvdlite.jax: a collective joins several devices of one process: give each process "
                "one device (jax_num_cpu_devices=1)"
            )
        name = f"jax.{','.join(map(str, ranks))}"
        if len(name) > 180:
            name = f"{name[:160]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        array, place = (ctypes.c_int * len(ranks))(*ranks), ranks.index(self._rank)
        address = ctypes.c_void_p(
            self._library.hvdlite_jax_announce(name.encode(), array, len(ranks), place, key[0])
        )
        if not address:
            raise MemoryError(f"hvdlite.jax: no memory for a group of {len(ranks)} ranks")
        with ThreadPoolExecutor(1) as other:  # has none of the caller's settings of JAX
            problem = other.submit(self._warm, devices).exception()
        if not self._library.hvdlite_jax_asked(address) or problem:
            raise RuntimeError(
                f"hvdlite.jax: XLA had a communicator of processes {ranks} before they could "
                "be announced: call hvd.init() before JAX's first computation"
            ) from problem
        self._known[key] = _Clique(address, ranks)
        return self._known[key]

    def _open(self, clique: _Clique) -> None:
        """Open the communicator's group, once; its other ranks do so, too.

        :raises jax.errors.JaxRuntimeError: a rank has not come, or has ended.
        """
        if clique.opened is None:
            try:
                group = _open_among(clique.ranks, self._patience)
                self._library.hvdlite_jax_open(clique.address, group)
                clique.opened = True
            except Exception as error:
                clique.opened = error
        if clique.opened is not True:
            raise jax.errors.JaxRuntimeError(f"hvdlite.jax: {clique.opened}")

    def _check_thread(self, clique: _Clique) -> None:
        """Have this thread own the communicator; raise RuntimeError if it may not."""
        here = threading.current_thread()
        with self._lock:
            if clique.thread is None or not clique.thread.is_alive():
                clique.thread = here
        why, what = "", f"hvdlite.jax: thread '{here.name}' runs a program of several processes"
        if self._context.value is None:
            why = "call hvd.init() at the beginning of this thread, too"
        elif clique.thread is not here:
            why = (
                f"thread '{clique.thread.name}' has run one for the same processes, and other "
                "ranks could run the two in another order: run all their programs in one thread"
            )
        if why:
            raise RuntimeError(f"{what}: {why}")

    def _warm(self, devices: Sequence[Any]) -> None:
        """Run the smallest program that asks for this communicator: one number, sent nowhere."""
        self._warming.now = True
        mesh = Mesh(np.array(devices, dtype=object), ("all",))

        def joined(x):  # a sum on one device asks for no communicator
            return jax.lax.psum(x, "all") if mesh.size > 1 else jax.lax.ppermute(x, "all", [(0, 0)])

        mapped = jax.shard_map(joined, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False)
        jax.jit(mapped)(np.ones(1, "float32")).block_until_ready()


def _open_among(ranks: List[int], patience: float) -> int:
    """Return the core's number of a group of these ranks, in this order. Only they call it.

    A rank that has begun to open a group can't stop. So the ranks agree first, by JAX's service,
    which keeps the first value that a key gets: the last rank to come writes the group's number, or
    the first rank whose time is up writes who is missing. All read the same.

    :param patience: seconds that a rank waits for the others.
    :raises RuntimeError: a rank has not come; all that have come raise it.
    :raises hvdlite.HvdliteError: the job has failed.
    """
    if ranks == list(range(topology.size())):
        return 0
    service, place = jax._src.distributed.global_state.client, f"hvdlite/{ranks}"
    until, verdict = time.monotonic() + patience, ""
    try:
        service.key_value_set(f"{place}/here/{topology.rank()}", "")
        while not verdict:
            call(lib.hvd_check)
            here = service.key_value_dir_get(f"{place}/here/")
            missing = sorted(set(ranks) - {int(key.rpartition("/")[2]) for key, _ in here})
            # another rank may write the key first, or nobody within this time
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                if not missing:
                    number = service.key_value_increment("hvdlite/groups", 1)
                    service.key_value_set(f"{place}/verdict", f"{number}")
                elif time.monotonic() >= until:
                    late = (
                        f"ranks {missing} did not come to the first collective of ranks {ranks} "
                        f"within {patience:g} s: their programs use other ranks first, have ended, "
                        "or are late; HVDLITE_STALL_SHUTDOWN_TIME_SECONDS sets the limit"
                    )
                    service.key_value_set(f"{place}/verdict", late)
            with contextlib.suppress(jax.errors.JaxRuntimeError):
                verdict = service.blocking_key_value_get(f"{place}/verdict", _LOOK_MS)
    except jax.errors.JaxRuntimeError:
        call(lib.hvd_check)  # raises the error of the rank whose end has ended the service
        raise
    if not verdict.isdecimal():
        raise RuntimeError(verdict)
    # Numbers of hvdlite.torch's groups count from 0, so these begin high, but number * size has to
    # fit into an int (SocketWorld).
    return registry.open_among(ranks, (1 << 29) // topology.size() + int(verdict))
