"""The life of a job: init, shutdown, and an exit that never hangs."""

import atexit
import contextlib
import importlib
import os
import sys
import threading
import time
import traceback
from typing import Callable, Optional, Sequence, Union

from hvdlite.core import frameworks, names, registry, topology
from hvdlite.core.mpi import MPI
from hvdlite.core.native import HvdliteError, call, failure_of, ffi, lib, new_error
from hvdlite.core.topology import is_initialized
from hvdlite.lifecycle import (
    alone,
    members,
    mpi_life,
    newcomers,
    orphan,
    recorder,
    script_end,
    watched,
)
from hvdlite.lifecycle.arrivals import Arrivals
from hvdlite.lifecycle.watched import FOLD


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1
    if not 0 <= value < float("inf"):  # False for NaN, too
        raise ValueError(f"{variable} is '{text}': expected a number of seconds, at least 0")
    return value


# A failed script waits this long for the other ranks to learn of it, then it ends the job.
EXIT_PATIENCE_SECONDS = _seconds("HVDLITE_EXIT_TIMEOUT_SECONDS", 5)
INIT_PATIENCE_SECONDS = _seconds("HVDLITE_INIT_TIMEOUT_SECONDS", 600)
GOOD_END = "its script has ended"
_GONE = 32_767  # the tag of a rank that has ended without init(): the highest of every MPI

_own_comm: Optional[MPI.Intracomm] = None  # made by init(list), freed with the job
_joined = False  # ever
_joining = threading.RLock()  # two threads may call init() at once


def init(comm: Union[None, Sequence[int], MPI.Intracomm] = None, process_sets=None) -> None:
    """Join the job. Collective: every rank of ``comm`` calls it. A second call does nothing.

    :param comm: None for all processes that mpirun started, a list of ranks of MPI.COMM_WORLD (only
        those ranks call init), or an mpi4py communicator. hvdlite works on duplicates of it.
    :param process_sets: a list of :class:`ProcessSet` to register at once, the same on every rank.
        Horovod's "dynamic" is accepted; ``add_process_set`` works with and without it.
    :raises ValueError: this process is not in ``comm``, or an HVDLITE_* variable is wrong.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> hvd.rank() < hvd.size()
    True
    """
    with _joining:
        if not is_initialized():
            _begin(comm, process_sets)


def _begin(comm, process_sets) -> None:
    mpi_life.begin()
    if _is_alone(comm):
        alone.refuse_if_one_of_several()
    if MPI.COMM_WORLD.size > 1 or members.is_newcomer():
        orphan.watch()
    if members.is_newcomer() and not _joined:
        newcomers.watch_first()
    if comm is None and members.is_elastic():
        _join_with_those_left(process_sets)
    else:
        _join(members.world() if comm is None else comm, process_sets)


def _is_alone(comm) -> bool:
    """Tell whether MPI knows of no other process; worlds of one may also have been connected."""
    connected = isinstance(comm, MPI.Comm) and comm != MPI.COMM_NULL and comm.size > 1
    return MPI.COMM_WORLD.size == 1 and not connected and not members.is_newcomer()


def _join_with_those_left(process_sets) -> None:
    """Join, and begin again without those that die meanwhile."""
    while True:
        well = False
        try:
            _join(members.world(), process_sets)
            well = True
        except Exception as error:  # after a death MPI may also return half of a message
            if not members.have_caused(error):
                raise
        if members.agreed(well):
            return
        members.revoke()
        leave_broken()
        members.shrink()


def _before_a_traceback(error: BaseException) -> Optional[str]:
    """Tell the agent of it; return its text alone if other ranks have caused the error."""
    failed = failure_of(error)
    others = failed is not None and is_initialized() and topology.rank() not in failed.ranks
    if not (failed and failed.ranks and others):
        watched.say_raised()
        return None
    how = {"stalled": watched.STALLED, "rank dead": watched.SILENT}.get(failed.kind or "", 0)
    watched.say_raised(how, failed.ranks)
    if os.environ.get(FOLD) != "1":
        return None
    text = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    return f"{text} (traceback folded: another rank is to blame)"


def _join(comm, process_sets) -> None:
    global _own_comm, _joined
    given = comm
    if not isinstance(comm, MPI.Comm):
        comm = _own_comm = _comm_of_ranks(comm)
    if comm == MPI.COMM_NULL:
        raise ValueError(f"init({given!r}): this process (rank {MPI.COMM_WORLD.rank}) is not in it")
    _wait_for_all(comm)
    call(lib.hvd_init, ffi.cast("void *", MPI._addressof(comm)))
    topology.enter(comm)
    names.forget()
    if not _joined:
        mpi_life.before_finalize(shutdown)
        script_end.watch_uncaught(_before_a_traceback)
    _joined = True
    recorder.begin(comm)
    watched.say_joined()
    registry.begin(process_sets)
    if "hvdlite.horovod.variables" in sys.modules:  # this program is one for Horovod
        sys.modules["hvdlite.horovod.variables"].set_all()


def _comm_of_ranks(ranks: Sequence[int]) -> MPI.Intracomm:
    ranks, size = list(ranks), MPI.COMM_WORLD.size
    if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < size for r in ranks):
        raise ValueError(f"init({ranks}): expected different ranks from 0 to {size - 1}")
    if MPI.COMM_WORLD.rank not in ranks:
        raise ValueError(
            f"init({ranks}): this process is rank {MPI.COMM_WORLD.rank}, which the list leaves out"
        )
    return MPI.COMM_WORLD.Create_group(MPI.COMM_WORLD.group.Incl(ranks))


def _wait_for_all(comm: MPI.Intracomm) -> None:
    """Return when all are in init(), or raise if one has ended without: MPI would wait for ever."""
    here, status = comm.Ibarrier(), MPI.Status()
    arrivals = Arrivals(comm, INIT_PATIENCE_SECONDS)
    while not here.Test():
        arrivals.look()
        # After a death those that are left come here together, and MPI.COMM_WORLD is broken.
        if not members.have_died() and MPI.COMM_WORLD.Iprobe(MPI.ANY_SOURCE, _GONE, status):
            gone = status.source
            (of_comm,) = MPI.COMM_WORLD.group.Translate_ranks([gone], comm.group)
            if of_comm != MPI.UNDEFINED:
                text = f"init(): rank {gone}'s script has ended without calling init()"
                raise HvdliteError(text, kind="rank left", ranks=(gone,))
            MPI.COMM_WORLD.Recv([None, 0, MPI.BYTE], gone, _GONE)
        time.sleep(0.001)  # Ctrl-C gets through here
    arrivals.take()


def _say_gone() -> None:
    """Tell those who wait for this process in init(), now or later; the others never look."""
    for other in range(MPI.COMM_WORLD.size):
        if other != MPI.COMM_WORLD.rank:
            MPI.COMM_WORLD.Isend([None, 0, MPI.BYTE], other, _GONE).Free()


def shutdown() -> None:
    """Leave the job. Collective: returns when every rank has left, by this call or by its exit.

    Tensors that all ranks have submitted are still reduced; tensors that wait for this rank fail on
    the other ranks. ``init()`` may be called again afterwards. Without a job the call does nothing.
    """
    if is_initialized():
        frameworks.submit_all()
        _leave("it called shutdown()")


def leave_broken() -> None:
    """Leave a job in which a rank has died; the other ranks leave it, too."""
    if is_initialized():
        _leave("it goes on without the dead")


def _leave(reason: str, patience: float = float("inf")) -> bool:
    """Leave and free everything. Return False, and free nothing, if other ranks stay too long."""
    global _own_comm
    lib.hvd_leave(reason.replace("\0", "\\0").encode(errors="replace"))
    deadline = time.monotonic() + patience
    while not lib.hvd_wait_end(0.1):  # short waits let Ctrl-C through
        if time.monotonic() > deadline:
            return False
    sound = lib.hvd_check(new_error()) == lib.HVD_OK
    recorder.before_leaving()
    lib.hvd_flight_bell(-1, b"")
    lib.hvd_close()
    recorder.end()
    watched.say_left()
    if _own_comm is not None and sound:
        _own_comm.Free()
    _own_comm = None
    topology.leave()
    return sound


def at_end(wait: Callable[[], None], before: Callable[[], None], after: Callable[[], None]) -> None:
    """Register how a framework waits, and what it does before and after this process leaves.

    From now on this process leaves the job before the exit functions registered so far run. MXNet's
    exit function waits for all its operations, so operations that can't complete must fail first.

    :param after: called at exit only.
    """
    frameworks.register(wait, before, after)
    _run_first_at_exit()


def _run_first_at_exit() -> None:
    atexit.unregister(at_exit)
    atexit.register(at_exit)


def at_exit() -> None:
    """Leave the job, or end it, as the script has ended. The interpreter calls this."""
    failed = script_end.failure()
    if failed and failed.error:
        watched.say_raised()  # again: a user's own sys.excepthook may have replaced the one here
    if failed:
        members.end_alone()
    clean = True
    if is_initialized():
        if failed is None:
            frameworks.submit_all()
        clean = _leave(*((failed.reason, EXIT_PATIENCE_SECONDS) if failed else (GOOD_END,)))
        if members.is_elastic() and not clean:  # a death after all work
            members.note_death()
            clean = True
        if clean:
            frameworks.after_exit()
    elif failed and not _joined and _has_others():
        if failed.error and failure_of(failed.error):  # another rank failed first: let it report
            time.sleep(EXIT_PATIENCE_SECONDS)
        clean = False  # the others wait in init(), and MPI_Finalize would wait for them
    elif not _joined and _has_others():
        _say_gone()
    if not clean or (failed and failed.unsaid and _has_others()):
        _end_job(failed.code if failed else 1)
    script_end.call_for_later_failures(_end_of_a_later_failure)


def _leave_before_threads_are_joined() -> None:
    """Leave if the script failed: its threads may wait for ranks that wait for this process."""
    main = threading.main_thread()
    if script_end.failure() and any(t is not main and not t.daemon for t in threading.enumerate()):
        at_exit()


def _end_of_a_later_failure(later: script_end.Failure) -> None:
    if _has_others():
        _end_job(later.code)


def _has_others() -> bool:
    return mpi_life.is_running() and MPI.COMM_WORLD.size > 1


def _end_job(code: int) -> None:
    """Kill all ranks: MPI is broken, or MPI_Finalize would wait for ranks that still compute."""
    recorder.before_leaving()
    print(f"hvdlite: rank {MPI.COMM_WORLD.rank} ends the job", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    if watched.by_an_agent():  # the agent ends the other ranks and cleans up after them
        os._exit(code)  # some mpiruns answer MPI_Abort by killing every process without warning
    MPI.COMM_WORLD.Abort(code)


_run_first_at_exit()
# Python waits for threads before it calls exit functions. What registers last comes first, before
# the executors' threads are waited for. Python 3.8 lacks this; an exit function is too late for it.
with contextlib.suppress(AttributeError, RuntimeError):
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(_leave_before_threads_are_joined)  # type: ignore[attr-defined]
