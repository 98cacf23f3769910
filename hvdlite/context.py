"""The life of a job: init, where this process is in it, shutdown, and an exit that never hangs."""

import atexit
import os
import sys
import time
from typing import Callable, Dict, List, Optional, Sequence, Union

from mpi4py import MPI

from hvdlite import names
from hvdlite._native import HvdliteError, call, ffi, lib, new_error


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        return float(text) if text else default
    except ValueError:
        raise ValueError(f"{variable} is '{text}': expected a number of seconds") from None


# A script that failed waits so long for the other ranks to hear of it before it ends the job.
EXIT_PATIENCE_SECONDS = _seconds("HVDLITE_EXIT_TIMEOUT_SECONDS", 5)

_comm: Optional[MPI.Comm] = None  # of the job
_own_comm: Optional[MPI.Comm] = None  # the same if init(list) made it: freed at the end
_homogeneous = False  # every host has as many ranks
_joined = False  # ever
_wait_all: List[Callable[[], None]] = []  # how frameworks wait for all that they have queued
_before_end: List[Callable[[], None]] = []  # what frameworks do while the job still stands
_after_exit: List[Callable[[], None]] = []  # and once this process has left it for good


def init(comm: Union[None, Sequence[int], MPI.Comm] = None, process_sets=None) -> None:
    """Join the job. Collective: every rank of ``comm`` calls it. A second call does nothing.

    :param comm: None for all processes that mpirun started, a list of ranks of MPI.COMM_WORLD (only
        those ranks call init), or an mpi4py communicator. hvdlite works on duplicates of it.
    :param process_sets: a list of :class:`ProcessSet` to register at once, the same on every rank.
        "dynamic" is taken as in Horovod; ``add_process_set`` may be called in any case.
    :raises ValueError: this process is not in ``comm``, or an HVDLITE_* variable makes no sense.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> hvd.rank() < hvd.size()
    True
    """
    global _comm, _own_comm, _homogeneous, _joined
    if is_initialized():
        return
    given = comm
    if comm is None:
        comm = MPI.COMM_WORLD
    elif not isinstance(comm, MPI.Comm):
        comm = _own_comm = _comm_of_ranks(comm)
    if comm == MPI.COMM_NULL:
        raise ValueError(f"init({given!r}): this process (rank {MPI.COMM_WORLD.rank}) is not in it")
    call(lib.hvd_init, ffi.cast("void *", MPI._addressof(comm)))
    _comm = comm
    _homogeneous = len(set(comm.allgather(local_size()))) == 1
    names.forget()
    _joined = True
    from hvdlite.process_sets import begin  # it stands on collectives, and those on this module

    begin(process_sets)


def _comm_of_ranks(ranks: Sequence[int]) -> MPI.Comm:
    ranks, size = list(ranks), MPI.COMM_WORLD.size
    if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < size for r in ranks):
        raise ValueError(f"init({ranks}): expected different ranks from 0 to {size - 1}")
    if MPI.COMM_WORLD.rank not in ranks:
        raise ValueError(
            f"init({ranks}): this process is rank {MPI.COMM_WORLD.rank}, which the list leaves out"
        )
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))


def communicator() -> MPI.Comm:
    """Return the communicator that ``init()`` was given."""
    return _comm


def is_initialized() -> bool:
    """Tell whether this process is between ``init()`` and ``shutdown()``."""
    return bool(lib.hvd_is_initialized())


def _where():
    topology = ffi.new("hvd_topology *")
    call(lib.hvd_where, topology)
    return topology


def rank() -> int:
    """Return this process's number in the job, from 0.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().rank


def size() -> int:
    """Return the number of processes in the job.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().size


def local_rank() -> int:
    """Return this process's number on its host, from 0.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().local_rank


def local_size() -> int:
    """Return the number of processes of the job on this host.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().local_size


def cross_rank() -> int:
    """Return this host's number, from 0, among those that have a process of this local rank.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().cross_rank


def cross_size() -> int:
    """Return the number of hosts that have a process of this local rank.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    return _where().cross_size


def is_homogeneous() -> bool:
    """Tell whether every host has the same number of processes of the job.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    _where()
    return _homogeneous


def stats() -> Dict[str, int]:
    """Return what this process has sent and done since ``init()``.

    ``bytes_sent_mpi`` and ``bytes_sent_window``: bytes of tensors given to MPI for other ranks, and
    put into shared memory for other ranks of this host. ``tensors``: how many are done;
    ``batches``: how many collectives that took, since small tensors are fused.

    :raises ValueError: before ``init()`` and after ``shutdown()``.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> sorted(hvd.stats())
    ['batches', 'bytes_sent_mpi', 'bytes_sent_window', 'tensors']
    """
    counts = ffi.new("hvd_stats *")
    call(lib.hvd_get_stats, counts)
    return {name: getattr(counts, name) for name, _ in ffi.typeof("hvd_stats").fields}


def shutdown() -> None:
    """Leave the job. Collective: returns when every rank has left, by this call or by its exit.

    What all ranks have submitted is still done; what still needs this rank fails on the others.
    ``init()`` may be called again afterwards. Without a job it does nothing.
    """
    if is_initialized():
        _submit_all()
        _leave("it called shutdown()")


def _leave(reason: str, patience: float = float("inf")) -> bool:
    """Leave and free everything; False, and nothing freed, if other ranks stay for too long."""
    global _comm, _own_comm
    lib.hvd_leave(reason.encode(errors="replace"))
    deadline = time.monotonic() + patience
    while not lib.hvd_wait_end(0.1):  # in short waits: Ctrl-C gets through between them
        if time.monotonic() > deadline:
            return False
    sound = lib.hvd_check(new_error()) == lib.HVD_OK
    lib.hvd_close()
    if _own_comm is not None and sound:
        _own_comm.Free()
    _comm = _own_comm = None
    return sound


def leave_group(group: int) -> None:
    """Leave and free a group of ranks. Collective over it."""
    _submit_all()
    lib.hvd_group_leave(group, b"it called remove_process_set()")
    while not lib.hvd_group_wait_end(group, 0.1):
        pass
    lib.hvd_group_close(group)


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Write from now on when each tensor was submitted, agreed on and moved to a file.

    The file is one that https://ui.perfetto.dev and chrome://tracing show; ``HVDLITE_TIMELINE``
    names one for the whole job.

    :param file_path: a path with "{rank}" in it gives every rank a file of its own; one without is
        written by rank 0 alone.
    :param mark_cycles: mark each time that the background thread found something to do.
    :raises ValueError: the timeline is on already, the file can't be written, or there is no job.
    """
    call(lib.hvd_timeline_start, os.fspath(file_path).encode(), mark_cycles)


def stop_timeline() -> None:
    """End the timeline; its file is complete then. ``shutdown()`` does so, too.

    :raises ValueError: before ``init()`` and after ``shutdown()``.
    """
    call(lib.hvd_timeline_stop)


def wait_all() -> None:
    """Wait until all that frameworks have queued is done; raises their errors."""
    for wait in _wait_all:
        wait()


def at_end(wait: Callable[[], None], before: Callable[[], None], after: Callable[[], None]) -> None:
    """Register how a framework waits for its work, what it does before this process leaves the job,
    and after it has at exit.

    The job is then left before exit functions registered so far run: MXNet's waits for all its
    operations, so those that can't complete must have been ended before.
    """
    _wait_all.append(wait)
    _before_end.append(before)
    _after_exit.append(after)
    _run_first_at_exit()


def _run_first_at_exit() -> None:
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)


def _submit_all() -> None:
    for before in _before_end:
        before()


def _at_exit() -> None:
    error = getattr(sys, "last_value", None)  # what the interpreter has just printed, if anything
    if not is_initialized():
        if error is not None and not _joined and MPI.COMM_WORLD.size > 1:
            if isinstance(error, HvdliteError):  # another rank is to blame: it shall be heard first
                time.sleep(EXIT_PATIENCE_SECONDS)
            _end_job()  # the others wait for it in init(), and it would for them when MPI ends
        return
    if error is None:
        _submit_all()
        clean = _leave("its script has ended")
    else:
        text = f": {error}" if str(error) else ""
        clean = _leave(f"its script raised {type(error).__name__}{text}", EXIT_PATIENCE_SECONDS)
    if not clean:
        _end_job()
    for after in _after_exit:
        after()


def _end_job() -> None:
    """Kill all ranks: MPI is broken, or others compute on and MPI_Finalize would wait for them."""
    print(f"hvdlite: rank {MPI.COMM_WORLD.rank} ends the job", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if os.environ.get("HVDLITE_WATCHED"):  # hvdliterun ends the others, and cleans up after them;
        os._exit(1)  # to MPI_Abort some mpiruns kill at once all there is, without a warning
    MPI.COMM_WORLD.Abort(1)


_run_first_at_exit()
