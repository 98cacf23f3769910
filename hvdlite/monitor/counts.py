"""What this process has done so far: counts, and the timeline."""

import os
from typing import Dict

from hvdlite.core import topology
from hvdlite.core.native import c_text, call, ffi, lib


def stats(steps: bool = False) -> Dict[str, float]:
    """Return what this process has sent and done since ``init()``.

    ``bytes_sent_mpi`` and ``bytes_sent_window``: bytes of tensors given to MPI for other ranks, and
    put into shared memory for other ranks of this host. ``tensors``: how many are done;
    ``batches``: how many collectives that took, since small tensors are fused.

    :param steps: also tell of this rank's last steps, as ``hvdlite why`` does of all ranks, which
        takes some 20 ms. ``step_seconds`` is their median. Shares of a step, 0 to 1, are
        ``waiting`` for other ranks and ``moving`` data that nothing hides, ``input`` and ``update``
        where the framework tells. 0: no tensor came twice, or there is no flight recorder.
    :raises ValueError: before ``init()`` and after ``shutdown()``.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> sorted(hvd.stats())
    ['batches', 'bytes_sent_mpi', 'bytes_sent_window', 'tensors']
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
    """Write to a file, from now on, when each tensor was submitted, agreed on and moved.

    https://ui.perfetto.dev and chrome://tracing show the file. ``HVDLITE_TIMELINE`` names a file
    for the whole job.

    :param file_path: with "{rank}" in the path each rank writes its own file; without it only rank
        0 writes.
    :param mark_cycles: mark each time that the background engine found work.
    :raises ValueError: the timeline is on already, the file can't be written, or there is no job.
    """
    path = c_text(os.fsdecode(file_path), "the timeline's path")
    call(lib.hvd_timeline_start, path, mark_cycles)


def stop_timeline() -> None:
    """End the timeline and complete its file. ``shutdown()`` does so, too.

    :raises ValueError: the disk was full; or before ``init()`` and after ``shutdown()``.
    """
    call(lib.hvd_timeline_stop)
