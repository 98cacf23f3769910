"""What this rank measures for its user: counters, or a timeline."""

import os
from typing import Dict

from hvdlite.core import topology
from hvdlite.core.native import c_text, call, ffi, lib


def stats(steps: bool = False) -> Dict[str, float]:
    """Return what this process has sent and done since ``init()``.

    ``bytes_sent_network``: bytes of tensors sent to other ranks by MPI or sockets;
    ``bytes_sent_window``: bytes of tensors written to shared memory for other ranks of this host;
    ``tensors``: number of finished tensors; ``batches``: number of collectives that moved them.

    :param steps: also return values about this rank's last steps, which takes about 20 ms.
        ``step_seconds`` is the median time of a step. Shares of a step, from 0 to 1, are
        ``waiting`` for other ranks, ``moving`` data while the rank computes nothing, and, if the
        framework reports them, ``input`` and ``update``. They are 0 without a flight recorder,
        and before a step has ended, that is, before a tensor's name is submitted again.
    :raises ValueError: before ``init()`` and after ``shutdown()``.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> sorted(hvd.stats())
    ['batches', 'bytes_sent_network', 'bytes_sent_window', 'tensors']
    """
    counts = ffi.new("hvd_stats *")
    call(lib.hvd_get_stats, counts)
    found = {name: getattr(counts, name) for name, _ in ffi.typeof("hvd_stats").fields}
    return {**found, **_of_steps()} if steps else found


def _of_steps() -> Dict[str, float]:
    from hvdlite.monitor import memory, metrics, verdict, why

    ranks_steps = [verdict.RankSteps(topology.rank(), "", [])]
    if lib.hvd_flight_file() >= 0:
        with memory.Recorder(f"/proc/self/fd/{lib.hvd_flight_file()}") as recorder:
            ranks_steps = why.rank_steps_of([recorder.snapshot()]) or ranks_steps
    return {"step_seconds": ranks_steps[0].seconds, **metrics.shares(ranks_steps[0])}


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start a timeline, a file that shows when tensors are submitted, wait for ranks, and move.

    https://ui.perfetto.dev and chrome://tracing show the file. ``HVDLITE_TIMELINE`` starts a
    timeline for the whole job.

    :param file_path: if the path contains "{rank}", each rank writes a file; otherwise only rank 0
        writes.
    :param mark_cycles: also mark when the engine's thread found work.
    :raises ValueError: a timeline is running, the file can't be written, or there is no job.
    """
    path = c_text(os.fsdecode(file_path), "the timeline's path")
    call(lib.hvd_timeline_start, path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline and complete its file; ``shutdown()`` does the same.

    :raises ValueError: the disk was full; or the call is before ``init()`` or after ``shutdown()``.
    """
    call(lib.hvd_timeline_stop)
