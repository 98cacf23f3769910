"""Announces to the C library which ranks each collective of each compiled program joins.

XLA makes a communicator by MPI_Comm_split, which tells a process its own place but not the other
members. So each executable is read when a client of jaxlib makes it, and for each new list of
members XLA makes its communicator at once, while the library knows the list. Nothing is sent.
"""

import functools
import threading
import zlib
from typing import Any, Dict, List, Sequence, Tuple

from hvdlite.jax import replica_groups
from hvdlite.jax.library import Library

TARGET = "hvdlite_collective"  # of the custom calls for programs of one process
_MAKERS = "compile_and_load", "deserialize_executable"


class Cliques:
    """The communicators of this process.

    :param size: of the job; ``rank``: this process's.
    """

    def __init__(self, library: Library, rank: int, size: int) -> None:
        self._library, self._rank = library, rank
        self._most = (1 << 29) // size  # SocketWorld.open_among makes an int of number * size
        self._numbers: Dict[Tuple[int, ...], int] = {}
        self._threads: Dict[Tuple[int, ...], threading.Thread] = {}  # that compile for the devices
        self._lock = threading.RLock()
        self._warming = threading.local()

    def watch(self, client: type) -> None:
        """Learn of every executable that a client of jaxlib makes.

        :raises RuntimeError: this version of jaxlib makes executables in an unknown way.
        """
        made = [name for name in _MAKERS if hasattr(client, name)]
        if len(made) < len(_MAKERS):
            raise RuntimeError(
                "hvdlite.jax: unknown version of jaxlib: docs/jax.md has those tested"
            )
        for name in made:
            setattr(client, name, self._watched(getattr(client, name)))

    def _watched(self, make):
        @functools.wraps(make)
        def making(client, what, *args, **named):
            executable = make(client, what, *args, **named)
            devices = named.get("executable_devices", args[0] if args else None)
            warming = getattr(self._warming, "now", False)
            if devices is not None and not warming and hasattr(executable, "hlo_modules"):
                self.announce(executable, list(devices))
            return executable

        return making

    def announce(self, executable, devices: List[Any]) -> None:
        """Have XLA make the communicators that a program needs in this process.

        :param devices: those of the program, in its order.
        :raises RuntimeError: a collective can't be carried out; docs/jax.md says which.
        """
        processes = [device.process_index for device in devices]
        if len(set(processes)) < 2 or self._rank not in processes:
            return
        for module in executable.hlo_modules():
            text = module.to_string()
            if f'custom_call_target="{TARGET}"' in text:
                raise RuntimeError(
                    "hvdlite.jax: a program of several processes calls hvd.allreduce or another of "
                    "hvd's collectives, which are for programs of one process: use jax.lax.psum "
                    "and the like there, or give jit arrays of this process alone"
                )
            for group in replica_groups.of(text, len(devices)):
                members = [devices[i] for i in group]
                if any(device.process_index == self._rank for device in members):
                    self._make(members, devices)

    def _make(self, devices: Sequence[Any], program: Sequence[Any]) -> None:
        key = tuple(device.id for device in devices)
        members = [device.process_index for device in devices]
        with self._lock:
            self._check_thread(key, members)
            if key in self._numbers:
                return
            if len(set(members)) < len(members):
                raise RuntimeError(
                    "hvdlite.jax: a collective joins several devices of one process: give each "
                    "process one device (jax_num_cpu_devices=1), and start more processes"
                )
            number = self._most + zlib.crc32(repr(members).encode()) % (self._most - 1)
            if number in self._numbers.values():
                raise RuntimeError(
                    f"hvdlite.jax: the processes {members} have the number of other processes, "
                    "by a rare accident: use the devices in another order"
                )
            self._library.expect(members, members.index(self._rank), key[0], number)
            problems: List[BaseException] = []
            # In a thread that has none of the caller's settings of JAX, as of default devices.
            thread = threading.Thread(target=self._warm, args=(devices, program, problems))
            thread.start()
            thread.join()
            made = self._library.expected(str(problems[0]) if problems else "")
            if problems or not made:
                raise RuntimeError(
                    f"hvdlite.jax: XLA had a communicator of processes {members} before they could "
                    "be announced: call hvd.init() before JAX's first computation"
                ) from next(iter(problems), None)
            self._numbers[key] = number

    def _check_thread(self, key: Tuple[int, ...], members: List[int]) -> None:
        """XLA does not say which program a collective is of: two threads could swap theirs."""
        thread = self._threads.get(key)
        if thread is None or not thread.is_alive():
            self._threads[key] = threading.current_thread()
        elif thread is not threading.current_thread():
            raise RuntimeError(
                f"hvdlite.jax: thread '{threading.current_thread().name}' compiles a program with "
                f"collectives of processes {members}, as thread '{thread.name}' has done: the "
                "processes could run the two programs in different orders; run all programs of "
                "these processes in one thread"
            )

    def _warm(self, devices, program, problems: List[BaseException]) -> None:
        """Run the smallest program that asks for this communicator: one number, summed nowhere."""
        self._warming.now = True
        try:
            _sum_one(devices, program, self._rank)
        except BaseException as error:
            problems.append(error)


def _sum_one(devices: Sequence[Any], program: Sequence[Any], rank: int) -> None:
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    own = next(device for device in devices if device.process_index == rank)
    rows = [list(devices)]
    if len(devices) == 1:  # a program on one device asks for no communicator: two, each alone
        rows = [[own], [next(device for device in program if device != own)]]
    mesh = Mesh(np.array(rows, dtype=object), ("outer", "inner"))
    one = jax.device_put(np.ones((1, 1), "float32"), own)
    spec = P("outer", "inner")
    array = jax.make_array_from_single_device_arrays(
        mesh.devices.shape, NamedSharding(mesh, spec), [one]
    )

    def total(x):
        return jax.lax.psum(x, "inner")

    mapped = jax.shard_map(total, mesh=mesh, in_specs=spec, out_specs=P("outer"))
    jax.jit(mapped)(array).block_until_ready()
