"""Opens the core's group of a communicator, once all of its ranks have come to it.

A rank that has begun to open a group can't stop. So the ranks agree first, by JAX's service, which
keeps the first value that a key gets: the last rank to come writes that all are there, or the first
rank whose time is up writes who is missing. All read the same.
"""

import contextlib
import time
from typing import List

import jax

from hvdlite.core import registry, topology
from hvdlite.core.native import call, lib

LOOK_MS = 500


def open_among(ranks: List[int], patience: float) -> int:
    """Return the core's number of a group of these ranks, in this order. Only they call it.

    :param patience: seconds that a rank waits for the others.
    :raises RuntimeError: a rank has not come; all that have come raise it.
    :raises hvdlite.HvdliteError: the job has failed.
    """
    if ranks == list(range(topology.size())):
        return 0
    service, place = jax._src.distributed.global_state.client, f"hvdlite/{ranks}"

    def decide(verdict: str) -> None:
        # another rank may have written the key first
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            service.key_value_set(f"{place}/verdict", verdict)

    try:
        service.key_value_set(f"{place}/here/{topology.rank()}", "")
        if service.key_value_increment(f"{place}/count", 1) == len(ranks):
            decide(f"{service.key_value_increment('hvdlite/groups', 1)}")
        until = time.monotonic() + patience
        while True:
            call(lib.hvd_check)
            try:
                verdict = service.blocking_key_value_get(f"{place}/verdict", LOOK_MS)
                break
            except jax.errors.JaxRuntimeError:
                if time.monotonic() >= until:
                    here = service.key_value_dir_get(f"{place}/here/")
                    came = [int(key.rpartition("/")[2]) for key, _ in here]
                    decide(_missing(ranks, sorted(set(ranks) - set(came)), patience))
    except jax.errors.JaxRuntimeError:
        call(lib.hvd_check)  # raises the error of the rank whose end has ended the service
        raise
    if not verdict.isdecimal():
        raise RuntimeError(verdict)
    # Numbers of hvdlite.torch's groups count from 0, so these begin high, but number * size has to
    # fit into an int (SocketWorld).
    return registry.open_among(ranks, (1 << 29) // topology.size() + int(verdict))


def _missing(ranks: List[int], missing: List[int], patience: float) -> str:
    return (
        f"ranks {missing} did not come to the first collective of ranks {ranks} within "
        f"{patience:g} s: their programs use other ranks first, have ended, or are late; "
        "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS sets the limit"
    )
