"""Announces to the C library which ranks each collective of each compiled program joins.

XLA makes a communicator by MPI_Comm_split, which tells a process its own place but not the other
members. So each executable is read when a client of jaxlib makes it, and for each new list of
members XLA makes its communicator at once, while the library knows the list. Nothing is sent.
"""

import functools
import itertools
import threading
from typing import Any, Dict, List, Sequence, Set, Tuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hvdlite.jax import replica_groups
from hvdlite.jax.library import Library

TARGET = "hvdlite_collective"  # XLA's name of hvdlite's custom calls
_MAKERS = "compile_and_load", "deserialize_executable"
_Key = Tuple[int, ...]  # numbers of the devices of one communicator


class Cliques:
    """The communicators of this process, and the threads that use them.

    XLA does not say which program a collective is of, so two threads could swap theirs, where ranks
    run them in different orders. So each communicator is of one thread. ``jit`` runs a program
    without Python, once it has run it in the same context: so each thread has a context of its own.

    :param rank: this process's.
    """

    def __init__(self, library: Library, rank: int) -> None:
        self._library, self._rank = library, rank
        self._known: Set[_Key] = set()
        self._programs: Dict[int, List[_Key]] = {}  # communicators of each executable, by its id()
        self._threads: Dict[_Key, threading.Thread] = {}
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
            self._check_thread(self._programs.get(id(program), ()))
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
        self._library.expect(members, members.index(self._rank), key[0])
        problems: List[BaseException] = []
        # In a new thread, which has none of the caller's settings of JAX, such as default devices.
        thread = threading.Thread(target=self._warm, args=(devices, problems))
        thread.start()
        thread.join()
        made = self._library.expected(str(problems[0]) if problems else "")
        if problems or not made:
            raise RuntimeError(
                f"hvdlite.jax: XLA had a communicator of processes {members} before they could "
                "be announced: call hvd.init() before JAX's first computation"
            ) from next(iter(problems), None)
        self._known.add(key)

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

    def _warm(self, devices: Sequence[Any], problems: List[BaseException]) -> None:
        """Run the smallest program that asks for this communicator: one number, sent nowhere."""
        self._warming.now = True
        try:
            _join(devices, self._rank)
        except BaseException as error:
            problems.append(error)


def _join(devices: Sequence[Any], rank: int) -> None:
    own = next(device for device in devices if device.process_index == rank)
    one = jax.device_put(np.ones(1, "float32"), own)
    mesh, spec = Mesh(np.array(devices, dtype=object), ("all",)), P("all")
    array = jax.make_array_from_single_device_arrays((mesh.size,), NamedSharding(mesh, spec), [one])

    def joined(x):  # XLA needs no communicator for a sum on one device
        return jax.lax.psum(x, "all") if mesh.size > 1 else jax.lax.ppermute(x, "all", [(0, 0)])

    mapped = jax.shard_map(joined, mesh=mesh, in_specs=spec, out_specs=P(), check_vma=False)
    jax.jit(mapped)(array).block_until_ready()
