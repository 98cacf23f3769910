"""Announces to the C library which ranks each collective of each compiled program joins.

XLA makes a communicator by MPI_Comm_split, which tells a process its own place but not the other
members. So each executable is read when a client of jaxlib makes it, and for each new list of
members XLA makes its communicator at once, while the library knows the list. Nothing is sent.
Before the first run of a program its ranks meet, and open a group of the core for each list.
"""

import ctypes
import functools
import hashlib
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hvdlite.jax import replica_groups
from hvdlite.jax.library import PATH, core_function

TARGET = "hvdlite_collective"  # XLA's name of hvdlite's custom calls
_MAKERS = "compile_and_load", "deserialize_executable"
_Key = Tuple[int, ...]  # numbers of the devices of one communicator


class _Clique(NamedTuple):
    """A communicator: its address in the library, and its ranks in the order of the devices."""

    address: int
    ranks: List[int]


class Cliques:
    """The communicators of this process, and the threads that use them.

    XLA does not say which program a collective is of, so two threads could swap theirs, where ranks
    run them in different orders. So each communicator is of one thread. ``jit`` runs a program
    without Python, once it has run it in the same context: so each thread has a context of its own.

    :param rank: this process's; ``size``: how many there are.
    :param opened: opens a group of the core among some ranks, which all call it; returns its number
        in this process.
    """

    def __init__(self, rank: int, size: int, opened: Callable[[List[int]], int]) -> None:
        self._library: Any = ctypes.CDLL(PATH)
        self._library.hvdlite_jax_expected.restype = ctypes.c_void_p
        self._library.hvdlite_jax_begin(core_function, rank, size)
        self._rank, self._opened = rank, opened
        self._known: Dict[_Key, _Clique] = {}
        self._programs: Dict[int, List[_Key]] = {}  # by id()
        self._threads: Dict[_Key, threading.Thread] = {}
        self._failed: Dict[_Key, Any] = {}  # why groups could not be opened; None: it is open
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
            keys = self._programs.get(id(program), ())
            self._check_thread(keys)
            for key in keys:
                self._open(key)
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

        :param devices: those of the program, in its order.
        :raises RuntimeError: a collective can't be carried out; docs/jax.md says which.
        """
        processes = {device.process_index for device in devices}
        if self._rank not in processes:
            return
        keys = self._programs[id(executable)] = []
        for module in executable.hlo_modules():
            text = module.to_string()
            if len(processes) > 1 and f'custom_call_target="{TARGET}"' in text:
                raise RuntimeError(
                    "hvdlite.jax: a program of several processes calls hvd.allreduce or another "
                    "hvd collective, which need a program of one process: use jax.lax.psum and "
                    "the like, or pass jit only arrays of this process"
                )
            for group in replica_groups.of(text, len(devices)):
                members = [devices[i] for i in group]
                if any(device.process_index == self._rank for device in members):
                    key = tuple(device.id for device in members)
                    keys += [key] * (len(key) > 1)
                    with self._lock:
                        self._make(key, members)

    def _make(self, key: _Key, devices: Sequence[Any]) -> None:
        members = [device.process_index for device in devices]
        if key in self._known:
            return
        if len(set(members)) < len(members):
            raise RuntimeError(
                "hvdlite.jax: a collective joins several devices of one process: give each "
                "process one device (jax_num_cpu_devices=1), and start more processes"
            )
        name = f"jax.{','.join(map(str, members))}"
        if len(name) > 180:
            name = f"{name[:160]}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
        array, place = (ctypes.c_int * len(members))(*members), members.index(self._rank)
        if self._library.hvdlite_jax_expect(name.encode(), array, len(members), place, key[0]):
            raise MemoryError(f"hvdlite.jax: no memory for a group of {len(members)} ranks")
        with ThreadPoolExecutor(1) as other:  # has none of the caller's settings of JAX
            problem = other.submit(self._warm, devices).exception()
        address = self._library.hvdlite_jax_expected()
        if problem or not address:
            raise RuntimeError(
                f"hvdlite.jax: XLA had a communicator of processes {members} before they could "
                "be announced: call hvd.init() before JAX's first computation"
            ) from problem
        self._known[key] = _Clique(address, members)

    def _open(self, key: _Key) -> None:
        """Open the communicator's group, once; its other ranks do so, too.

        :raises jax.errors.JaxRuntimeError: a rank has not come, or has ended.
        """
        if key not in self._failed:
            address, ranks = self._known[key]
            why = None
            try:
                self._library.hvdlite_jax_open(ctypes.c_void_p(address), self._opened(ranks))
            except Exception as error:
                why = error
            self._failed[key] = why
        if self._failed[key]:
            raise jax.errors.JaxRuntimeError(f"hvdlite.jax: {self._failed[key]}")

    def _check_thread(self, keys: Sequence[_Key]) -> None:
        """Have this thread own these communicators; raise RuntimeError if it may not."""
        here = threading.current_thread()
        for key in keys:
            with self._lock:
                other = self._threads.get(key, here)
                if other is here or not other.is_alive():
                    other = self._threads[key] = here
            if self._context.value is None:
                why = "call hvd.init() at the beginning of this thread, too"
            elif other is not here:
                why = (
                    f"thread '{other.name}' has run one for the same processes, and other ranks "
                    "could run the two in another order: run all their programs in one thread"
                )
            else:
                continue
            raise RuntimeError(
                f"hvdlite.jax: thread '{here.name}' runs a program of several processes: {why}"
            )

    def _warm(self, devices: Sequence[Any]) -> None:
        """Run the smallest program that asks for this communicator: one number, sent nowhere."""
        self._warming.now = True
        own = next(device for device in devices if device.process_index == self._rank)
        one = jax.device_put(np.ones(1, "float32"), own)
        mesh, spec = Mesh(np.array(devices, dtype=object), ("all",)), P("all")
        array = jax.make_array_from_single_device_arrays(
            (mesh.size,), NamedSharding(mesh, spec), [one]
        )

        def joined(x):  # a sum on one device asks for no communicator
            return jax.lax.psum(x, "all") if mesh.size > 1 else jax.lax.ppermute(x, "all", [(0, 0)])

        mapped = jax.shard_map(joined, mesh=mesh, in_specs=spec, out_specs=P(), check_vma=False)
        jax.jit(mapped)(array).block_until_ready()
