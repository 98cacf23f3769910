"""init() and shutdown(): make the job's ranks the processes of JAX, with hvdlite as JAX's MPI."""

import contextlib
import os
from typing import Any, Optional

import jax

import hvdlite
from hvdlite import at_exit
from hvdlite.core import places
from hvdlite.core.addresses import addresses_of_ranks, joined
from hvdlite.core.module_state import ModuleState
from hvdlite.jax import small_floats
from hvdlite.jax.cliques import Cliques
from hvdlite.jax.library import choose

_PATIENCE = "60"  # seconds; JAX ends all processes if one has been silent for 100
_TESTED = "JAX 0.7.2 to 0.12.0"


class _Joined(ModuleState):
    def begin(self) -> None:
        self.cliques: Optional[Cliques] = None  # JAX uses them until the process ends


_joined = _Joined()


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join the job, and make its ranks JAX's processes: ``jax.process_index() == hvd.rank()``.

    Afterwards ``jax.devices()`` has the devices of all ranks, and hvdlite runs all collectives that
    XLA puts into programs of several processes. Collective. Each thread that runs programs of
    several processes must make the call; a second call in the same thread does nothing.

    A collective fails if a rank is late by HVDLITE_STALL_SHUTDOWN_TIME_SECONDS, or silent for
    HVDLITE_DATA_TIMEOUT_SECONDS. If the environment does not set them, both are 60, unless
    ``hvdlite.init()`` was called before.

    :param comm: as for ``hvdlite.init``; so are ``process_sets`` and the errors.
    :raises ImportError: jaxlib was loaded without hvdlite's library.
    :raises RuntimeError: JAX has computed already, has joined another job, or has a version that
        hvdlite does not know.
    """
    if _joined.cliques:
        if hvdlite.is_initialized():
            return _joined.cliques.enter_thread()
        raise RuntimeError(
            "hvdlite.jax: JAX can join one job in a process: start new processes for the next one"
        )
    choose(must=True)
    for limit in ("HVDLITE_STALL_SHUTDOWN_TIME_SECONDS", "HVDLITE_DATA_TIMEOUT_SECONDS"):
        of_horovod = os.environ.get(limit.replace("HVDLITE", "HOROVOD"))
        if not os.environ.get(limit):
            os.environ[limit] = of_horovod or _PATIENCE
    hvdlite.init(comm, process_sets)
    if hvdlite.size() == 1:
        return
    _join()
    try:
        cliques = Cliques()
        small_floats.translate()
        cliques.watch(type(jax.local_devices()[0].client), jax._src.lib._jax.LoadedExecutable)
    except AttributeError as error:
        raise RuntimeError(
            f"hvdlite.jax does not support JAX {jax.__version__}: it was tested with {_TESTED}"
        ) from error
    cliques.enter_thread()
    _joined.cliques = cliques
    at_exit.at_end(wait=_finish, before=_finish, after=lambda: None)


def _finish() -> None:
    """Wait for the programs in progress, because other ranks may wait for this rank's part."""
    for array in jax.live_arrays():
        with contextlib.suppress(Exception):
            array.block_until_ready()


def _join() -> None:
    """Connect JAX's processes (jax.distributed), unless the program has done so."""
    if jax.distributed.is_initialized():
        found, rank, size = jax._src.distributed.global_state, hvdlite.rank(), hvdlite.size()
        if (found.process_id, found.num_processes) != (rank, size):
            raise RuntimeError(
                f"hvdlite.jax: jax.distributed.initialize has made rank {rank} of {size} the "
                f"process {found.process_id} of {found.num_processes}: remove that call, because "
                "hvd.init() makes it"
            )
    if jax._src.xla_bridge.backends_are_initialized():
        raise RuntimeError(
            "hvdlite.jax: call hvd.init() before JAX's first computation and jax.devices()"
        )
    if not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "mpi")
    if not jax.distributed.is_initialized():
        own = joined(addresses_of_ranks()[0], places.free_port())
        place = hvdlite.broadcast_object(own, 0, "jax.place")
        jax.distributed.initialize(
            place, hvdlite.size(), hvdlite.rank(), cluster_detection_method="deactivate",
            coordinator_bind_address=place,
        )  # fmt: skip


def shutdown() -> None:
    """Leave hvdlite's job and JAX's; do nothing if the process is in no job. Collective."""
    if hvdlite.is_initialized() and hvdlite.size() > 1 and jax.distributed.is_initialized():
        jax.distributed.shutdown()
    hvdlite.shutdown()
