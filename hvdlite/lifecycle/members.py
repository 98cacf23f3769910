"""The processes that make up the job, and how those that are left go on when some have died.

That needs an MPI that lets them: Open MPI 5 under ``mpirun --with-ft ulfm``. MPI's own words: a
communicator is revoked so that every call on it ends with an error, and shrunk to a new one of the
processes that are left. Agreement is on the same value everywhere, whoever dies meanwhile.
"""

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Any, Callable, List

from hvdlite.core.mpi import MPI
from hvdlite.core.native import HvdliteError, failure_of
from hvdlite.lifecycle import mpi_life, resets, script_end
from hvdlite.lifecycle.limits import PATIENCE, limit_of
from hvdlite.lifecycle.watched import ELASTIC, NEWCOMER

_ON = "OMPI_MCA_mpi_ft_enable"  # set by mpirun --with-ft ulfm
NEWS_SECONDS = 5.0  # from an error to the news of the death that has caused it; 1 on busy cores
CERTAIN_SECONDS = 20.0  # the same, where hvdlite itself has seen the death: mpirun may stand still

_comm: MPI.Intracomm = MPI.COMM_WORLD  # of those that are left
_elastic = False  # this script goes on without processes that die
_died = False


def is_newcomer() -> bool:
    """Tell whether this process was started to come into a running job."""
    return NEWCOMER in os.environ and MPI.Comm.Get_parent() != MPI.COMM_NULL


def survive() -> bool:
    """Tell whether processes may go on when others have died."""
    return os.environ.get(_ON, "").lower() in ("1", "true")


def is_elastic() -> bool:
    """Tell whether this process goes on when others die, and they when it does."""
    return (_elastic or os.environ.get(ELASTIC) == "1") and survive()


def note_death() -> None:
    """End alone from now on: the processes of MPI are not those of the job, or will not be."""
    global _died
    _died = True


def world() -> MPI.Intracomm:
    """Return the communicator of all processes of the job, as far as they are known to live."""
    return _comm


def have_died() -> bool:
    """Tell whether this process goes on without some that it was started with, or with others."""
    return _died


def is_seen(seconds: float) -> bool:
    """Tell whether a death is known to MPI here, or another process has seen one; wait for it."""
    until = time.monotonic() + seconds
    while survive():
        with contextlib.suppress(MPI.Exception):
            _comm.Iprobe()  # lets MPI find deaths
        if _comm.Is_revoked() or _comm.Get_failed().size:
            return True
        if time.monotonic() > until:
            break
        time.sleep(1e-3)
    return False


def have_caused(error: BaseException) -> bool:
    """Tell whether deaths have caused the error, by MPI's news; wait for the news.

    Of a rank that stands still there is none: the others wait for it in :func:`agreed`. Nor is
    there of a disagreement, which all ranks raise.
    """
    failed = failure_of(error)
    kind = failed.kind if failed else None
    if kind in ("rank dead", "mismatch"):
        return kind == "rank dead" and survive()
    return is_seen(CERTAIN_SECONDS if kind == "rank left" else NEWS_SECONDS)


def revoke() -> None:
    """End the calls of all processes that wait on :func:`world`."""
    if survive():
        _comm.Revoke()


def agreed(vote: int) -> int:
    """Return the bits that all votes have, 0 after a death: the same everywhere. Collective.

    :raises HvdliteError: some did not come in time.
    """
    if not survive():
        return vote
    try:
        return _within_patience(lambda: _comm.Agree(int(vote)))
    except MPI.Exception:
        return 0


def shrink() -> None:
    """Go on without the dead. Collective.

    :raises HvdliteError: some did not come in time; too few are left; or ranks have died too often.
    """
    new = _within_patience(_comm.Shrink)
    new.Set_errhandler(MPI.ERRORS_RETURN)
    take(new)
    resets.begin_with(new.size)


def take(comm: MPI.Intracomm) -> None:
    """Go on with these processes."""
    global _comm, _died
    _comm, _died = comm, True


def go_on_without_others() -> bool:
    """Note a death after all work, if this process goes on though others die."""
    if is_elastic():
        note_death()
    return is_elastic()


def begin(world: Any) -> None:
    """From now on a failure of this script ends this process only.

    :param world: of the job that this process has joined, an ``MPIWorld``.
    """
    global _comm, _elastic
    _comm, _elastic = world.comm, True


def _within_patience(function: Callable[[], Any]) -> Any:
    """Call it in a thread: Ctrl-C gets through, and a rank that never comes is not waited for."""
    seconds = limit_of(PATIENCE)
    outcome: list = []

    def run() -> None:
        try:
            outcome.append((function(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not outcome:
        raise HvdliteError(
            f"rank {_comm.rank} has waited {seconds:g} s for the other ranks to go on together "
            f"after a death: one of them computes, or stands still. {PATIENCE} sets how long"
        )
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def end_alone() -> None:
    """Exit now if others may have died, or die meanwhile: MPI_Finalize would wait for them.

    For exit functions.
    """
    failed = script_end.failure()
    if not (_died or is_elastic()) or not mpi_life.is_running():
        return
    script_end.flush()
    for path in _segments():
        with contextlib.suppress(OSError):
            path.unlink()
    os._exit(failed.code if failed else 0)


def _segments() -> List[Path]:
    """Return the files of Open MPI's shared memory, which MPI_Finalize would remove."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text().splitlines()
        paths = {line.split(None, 5)[5] for line in lines if "sm_segment" in line}
        return [Path(path) for path in paths if not path.endswith("(deleted)")]
    return []
