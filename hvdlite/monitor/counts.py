"""Counters of what this process has done, and its timeline."""

import os
from typing import Dict

from hvdlite.core import topology
from hvdlite.core.native import c_text, call, ffi, lib


def stats(steps: bool = False) -> Dict[str, float]:
    """Return what this process has sent and done since ``init()``.

    ``bytes_sent_network``: bytes of tensors sent to other ranks by MPI or sockets;
    ``bytes_sent_window``: put into shared memory for other ranks of this host. ``tensors``: how
    many are done; ``batches``: how many collectives that took, since small tensors are fused.

    :param steps: also describe this rank's last steps, as ``hvdlite why`` does for all ranks; that
        takes some 20 ms. ``step_seconds`` is their median. Shares of a step, from 0 to 1, are
        ``waiting`` for other ranks, ``moving`` data that no computation hides, and, if the
        framework reports them, ``input`` and ``update``. All are 0 if no tensor came twice, or
        without a flight recorder.
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

    ways = [verdict.Ways(topology.rank(), "", [])]
    if lib.hvd_flight_file() >= 0:
        with memory.Recorder(f"/proc/self/fd/{lib.hvd_flight_file()}") as recorder:
            ways = why.ways_of([recorder.snapshot()]) or ways
    return {"step_seconds": ways[0].seconds, **metrics.shares(ways[0])}


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Start a timeline: a file that says when each tensor was submitted, decided and moved.

    https://ui.perfetto.dev and chrome://tracing show the file. ``HVDLITE_TIMELINE`` starts one for
    the whole job.

    :param file_path: with "{rank}" in the path each rank writes its own file; without it only rank
        0 writes.
    :param mark_cycles: also mark when the background engine found work.
    :raises ValueError: a timeline is running, the file can't be written, or there is no job.
    """
    path = c_text(os.fsdecode(file_path), "the timeline's path")
    call(lib.hvd_timeline_start, path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline and complete its file, as ``shutdown()`` does.

    :raises ValueError: the disk was full; or before ``init()`` and after ``shutdown()``.
    """
    call(lib.hvd_timeline_stop)
