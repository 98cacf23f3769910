"""Tells the C library the members of XLA's communicators, and opens the core's groups for them.

This module reads each executable that a client of jaxlib makes. For each new list of members, the
module announces the list to the library and makes XLA create the communicator. Creating a
communicator sends nothing. Before the first run of a program, its ranks meet and open a group of
the core for each list.
"""

import contextlib
import functools
import hashlib
import itertools
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, NamedTuple, Sequence, Tuple, Union

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from hvdlite._hvdlite_jax import ffi, lib  # type: ignore[import-not-found]
from hvdlite.core import native, topology
from hvdlite.core.group_opening import open_among
from hvdlite.core.native import HvdliteError, keep_failure
from hvdlite.jax import replica_groups

TARGET = "hvdlite_collective"  # XLA's name for hvdlite's custom calls
# finds the group and the name of each custom call of hvdlite in a program's text
_CALL = re.compile(
    rf'custom_call_target="{TARGET}".*?\bgroup = (\S+).*?\bname = "((?:[^"\\]|\\.)*)"'
)
# finds a function of the core by its name, for C libraries
core_function = ffi.callback(
    "core_finder *", lambda n: ffi.cast("core_function", native.address_of(ffi.string(n).decode()))
)


class _Clique(NamedTuple):
    """A communicator of XLA."""

    name: str  # the name of its tensors
    address: Any  # its `struct clique *`
    ranks: Tuple[int, ...]  # in the order of the devices


class _Program(NamedTuple):
    """What this module checks and opens before a program of XLA runs."""

    calls: Sequence[Tuple[str, str]] = ()  # process set and name of each collective of hvd
    device: Any = None  # the program's device, if `calls` is not empty
    cliques: Sequence[_Clique] = ()


class Cliques:
    """The communicators of this process, and the threads that use them.

    Each communicator, and each name of hvd's collectives, belongs to one thread (docs/jax.md,
    "Threads"). This class checks this when a program runs, but ``jit`` runs no Python for a program
    that has run before in the same context of JAX. Therefore each thread has its own context.
    """

    def __init__(self) -> None:
        self._rank = topology.rank()
        lib.hvdlite_jax_begin(core_function, self._rank, topology.size())
        self._known: Dict[Tuple[int, ...], _Clique] = {}  # by the devices' ids
        self._programs: Dict[int, _Program] = {}  # by id(), which a later executable may reuse
        # the only thread that may run programs with this communicator or call
        self._threads: Dict[Any, threading.Thread] = {}
        self._device: Any = None  # the device of the last program with collectives of hvd
        # only one thread at a time opens a clique's group; a failure is final
        self._group_of = functools.lru_cache(maxsize=None)(self._open_group)
        # high numbers, because hvdlite.torch uses low ones; number * size must fit into C's int
        self._numbers = itertools.count((1 << 29) // topology.size())
        self._lock = threading.RLock()
        self._warming = threading.local()
        self._context = jax.make_user_context()

    def watch(self, client: type, executable: type) -> None:
        """Hook the functions of jaxlib that make and run executables."""
        for name in ("compile_and_load", "deserialize_executable"):
            setattr(client, name, self._announcing(getattr(client, name)))
        execute = executable.execute_sharded  # type: ignore[attr-defined]

        @functools.wraps(execute)
        def check_and_execute(program, *args, **named):
            needs = self._programs.get(id(program), _Program())
            self._check_thread(needs)
            if needs.device not in (None, self._device):
                # wait for the last program, because XLA orders only the programs of one device
                end = jax._src.dispatch.runtime_tokens.output_runtime_tokens.get(self._device)
                with contextlib.suppress(jax.errors.JaxRuntimeError):
                    if end:
                        end.block_until_ready()
                self._device = needs.device
            for clique in needs.cliques:
                self._open(clique)
            return execute(program, *args, **named)

        executable.execute_sharded = check_and_execute  # type: ignore[attr-defined]

    def enter_thread(self) -> None:
        """Allow this thread to run programs of several processes."""
        if self._context.value is None:
            self._context(object()).__enter__()

    def _announcing(self, make):
        """Return a function that makes an executable by ``make``, and then its communicators."""

        @functools.wraps(make)
        def make_and_announce(client, what, *args, **named):
            executable = make(client, what, *args, **named)
            devices = named.get("executable_devices", args[0] if args else ())
            self._programs[id(executable)] = self._announce_cliques(executable, list(devices))
            return executable

        return make_and_announce

    def _announce_cliques(self, executable, devices: List[Any]) -> _Program:
        """Make XLA create the communicators that a program needs in this process.

        :param devices: the devices of the program, in the program's order.
        :raises RuntimeError: a collective can't be carried out; docs/jax.md says which.
        """
        if getattr(self._warming, "now", False) or not hasattr(executable, "hlo_modules"):
            return _Program()
        text = "\n".join(module.to_string() for module in executable.hlo_modules())
        calls = _CALL.findall(text)
        # not bool(calls): _CALL misses calls with unknown attributes, which the C library refuses
        has_calls = f'custom_call_target="{TARGET}"' in text
        # each of the devices would call the collective, and XLA does not order such calls
        if has_calls and len(devices) > 1:
            raise RuntimeError(
                f"hvdlite.jax: a jit program of {len(devices)} devices calls a collective of hvd, "
                "such as hvd.allreduce, which works only in a program of one device: use "
                "jax.lax.psum and the like, or pass jit only arrays of one device of this process"
            )
        found: List[_Clique] = []
        for group in replica_groups.parse(text, len(devices)):
            members = [devices[i] for i in group]
            if self._rank in (member.process_index for member in members):
                with self._lock:
                    clique = self._find_or_make(members)
                found += [clique] * (len(members) > 1)
        return _Program(calls, devices[0] if has_calls else None, found)

    def _find_or_make(self, devices: Sequence[Any]) -> _Clique:
        """Return the communicator of these devices; make XLA create it if it is new."""
        key = tuple(device.id for device in devices)
        if key in self._known:
            return self._known[key]
        ranks = [device.process_index for device in devices]
        if len(set(ranks)) < len(ranks):
            raise RuntimeError(
                "hvdlite.jax: a collective joins several devices of one process: give each process "
                "one device (jax_num_cpu_devices=1)"
            )
        name = f"jax.{','.join(map(str, ranks))}"
        if jax.device_count() > topology.size():  # several cliques may have the same ranks
            name += f"/devices.{','.join(map(str, key))}"
        if len(name) > lib.CLIQUE_NAME:
            digest = hashlib.sha256(name.encode()).hexdigest()[:16]
            name = f"{name[: lib.CLIQUE_NAME - 17]}-{digest}"
        place = ranks.index(self._rank)
        address = lib.hvdlite_jax_announce(name.encode(), len(ranks), place, key[0])
        if not address:
            raise MemoryError(f"hvdlite.jax: no memory for a group of {len(ranks)} ranks")
        with ThreadPoolExecutor(1) as other:  # because the caller's thread may have settings of JAX
            problem = other.submit(self._warm, devices).exception()
        if not lib.hvdlite_jax_withdraw(address) or problem:
            raise RuntimeError(
                f"hvdlite.jax: XLA made a communicator of processes {ranks} that hvdlite did not "
                "expect: call hvd.init() before JAX's first computation"
            ) from problem
        return self._known.setdefault(key, _Clique(name, address, tuple(ranks)))

    def _open(self, clique: _Clique) -> None:
        """Open the communicator's group, unless it is open. Collective over its ranks.

        :raises jax.errors.JaxRuntimeError: a rank did not make this call in time, or has ended.
        """
        group = self._group_of(clique)
        if isinstance(group, HvdliteError):
            raise jax.errors.JaxRuntimeError(
                f"hvdlite.jax: ranks {list(clique.ranks)} can't run their first collective: "
                f"{group}. Do all of them run it, before programs of other ranks?"
            )
        lib.hvdlite_jax_open(clique.address, group)

    def _open_group(self, clique: _Clique) -> Union[int, HvdliteError]:
        """Return the number in C of the clique's group, or why the group can't be opened."""
        if clique.ranks == tuple(range(topology.size())):
            return 0
        try:
            return open_among(list(clique.ranks), next(self._numbers), clique.name)
        except HvdliteError as error:
            return keep_failure(error)

    def _check_thread(self, program: _Program) -> None:
        """Raise RuntimeError if another thread uses the program's communicators or names."""
        current = threading.current_thread()
        what, does = f"hvdlite.jax: thread '{current.name}' runs a program", "of several processes"
        if program.cliques and self._context.value is None:
            raise RuntimeError(
                f"{what} {does}: call hvd.init() at the beginning of this thread, too"
            )
        uses: List[Any] = [*program.cliques, *program.calls]
        if not uses:  # without the lock, which a thread holds while it waits for _warm()
            return
        with self._lock:
            for used in uses:
                owner = self._threads.get(used, current)
                if owner is current or not owner.is_alive():
                    continue
                instead = "run all programs of several processes in one thread"
                if not isinstance(used, _Clique):
                    does = f"that calls '{used[1]}'"
                    instead = "give each thread's calls other names"
                raise RuntimeError(
                    f"{what} {does}, and so did thread '{owner.name}' before. Ranks could run the "
                    f"two programs in different orders: {instead}"
                )
            self._threads.update(dict.fromkeys(uses, current))

    def _warm(self, devices: Sequence[Any]) -> None:
        """Run a small program that needs this communicator. Each device sends only to itself."""
        self._warming.now = True
        mesh = jax.sharding.Mesh(np.array(devices, dtype=object), ("all",))
        mapped = jax.shard_map(
            lambda x: jax.lax.ppermute(x, "all", [(0, 0)]), mesh=mesh, in_specs=P(), out_specs=P(),
            check_vma=False,
        )  # fmt: skip
        jax.jit(mapped)(np.ones(1, "float32")).block_until_ready()
