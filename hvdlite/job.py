"""The life of a job: init(), shutdown(), and an exit that never hangs."""

import atexit
import contextlib
import functools
import importlib
import os
import sys
import threading
import time
import traceback
from typing import Callable, Optional, Tuple

from hvdlite.bootstrap import servers, singleton_check
from hvdlite.bootstrap.bootstrap import Bootstrap
from hvdlite.core import (
    agent_protocol,
    frameworks,
    limits,
    loaded_mpi,
    registry,
    start,
    topology,
)
from hvdlite.core.agent_protocol import FOLD
from hvdlite.core.log import logger
from hvdlite.core.membership import GOES_ON, Membership
from hvdlite.core.module_state import ModuleState, process
from hvdlite.core.native import BRIEFLY, RANK_DEAD, STALLED, failure_of, ffi, lib, new_error
from hvdlite.core.topology import is_initialized
from hvdlite.core.world import World
from hvdlite.exit import ending, orphan, script_end
from hvdlite.monitor import recorder

# seconds for which a failed script waits before it ends the job
EXIT_PATIENCE_SECONDS = limits.limit_of(limits.EXIT)
INIT_PATIENCE_SECONDS = limits.limit_of(limits.INIT)
STAYING_SECONDS = 0.3  # seconds in which join_other_job() lets other ranks leave the old job
_UNEVEN = (
    "if it had fewer batches, give all ranks the same number of batches, as DistributedSampler "
    "does, or call hvd.join() after the last batch"
)
GOOD_END = f"its script has ended; {_UNEVEN}"


class _Jobs(ModuleState):
    """The jobs that this process has joined."""

    def begin(self) -> None:
        self.joining = threading.RLock()  # held during init(), which several threads may call
        self.has_joined = False  # True: this process has ever joined a job
        self.way: Optional[Tuple[Bootstrap, Membership]] = None  # once they are decided
        # True: the last job has failed, so other ranks may never reach their end
        self.is_broken = False

    def begin_child(self) -> None:
        if self.way:
            self.way[1].close_in_child()


_jobs = _Jobs()


def init(comm=None, process_sets=None) -> None:
    """Join the job. Collective over the ranks of ``comm``. A second call does nothing.

    :param comm: None for all processes that the launcher started; a list of ranks of MPI.COMM_WORLD
        (only these ranks call init); or an mpi4py communicator, which hvdlite duplicates.
    :param process_sets: a list of :class:`ProcessSet` to register now, the same on every rank.
        Horovod's "dynamic" is accepted, but ``add_process_set`` works with and without it.
    :raises ValueError: this process is not in ``comm``, or an HVDLITE_* variable is wrong.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> hvd.rank() < hvd.size()
    True
    """
    with _jobs.joining:
        if not is_initialized():
            limits.check()
            singleton_check.refuse_in_a_child()
            servers.serve()
            servers.rendezvous(INIT_PATIENCE_SECONDS)
            start.decide(comm)
            bootstrap().begin(comm)
            enter = functools.partial(_enter, process_sets)
            bootstrap().join(comm, INIT_PATIENCE_SECONDS, membership(), enter)


def _bootstrap_and_membership() -> Tuple[Bootstrap, Membership]:
    """Return how this process joins its job, and the membership of the job."""
    _jobs.way = _jobs.way or _decided_way()
    return _jobs.way


def _decided_way() -> Tuple[Bootstrap, Membership]:
    """Return the bootstrap and the membership of a job over MPI, or of a job over sockets.

    Call this after ``start.decide()``, because importing the modules for MPI initializes MPI.
    """
    assert start.is_decided()
    if start.without_mpi() is None:
        from hvdlite.bootstrap.mpi_world import MPIBootstrap, MPIMembership

        return MPIBootstrap(), MPIMembership()
    from hvdlite.bootstrap.socket_world import SocketBootstrap
    from hvdlite.membership.elastic import ElasticMembership

    return SocketBootstrap(), ElasticMembership()


def bootstrap() -> Bootstrap:
    return _bootstrap_and_membership()[0]


def membership() -> Membership:
    return _bootstrap_and_membership()[1]


def _before_a_traceback(error: BaseException) -> Optional[str]:
    """Report the error to the agent; return a text in place of its traceback, or None.

    There is a text if other ranks have caused the error and the user wants folded tracebacks.
    """
    failed = failure_of(error)
    others = failed is not None and is_initialized() and topology.rank() not in failed.ranks
    if not (failed and failed.ranks and others):
        agent_protocol.report_raised()
        return None
    how = {STALLED: agent_protocol.STALLED, RANK_DEAD: agent_protocol.SILENT}.get(
        failed.kind or "", 0
    )
    agent_protocol.report_raised(how, failed.ranks)
    if os.environ.get(FOLD) != "1":
        return None
    text = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    return f"{text} (traceback folded: another rank is to blame)"


def _enter(process_sets, world: World) -> None:
    limits.check_alike(world)
    world.init()
    topology.enter(world)
    membership().entered(world)
    if not world.rank:
        logger.info("%d ranks, transport %s", world.size, bootstrap().transport)
    process.begin_job()
    start.note_member()
    if not _jobs.has_joined:
        bootstrap().before_end(shutdown)
        script_end.watch_uncaught(_before_a_traceback)
        _watch_end_of_a_worker()
    _jobs.has_joined, _jobs.is_broken = True, False
    recorder.begin(world, bootstrap().transport)
    agent_protocol.report(agent_protocol.JOINED)
    registry.begin(process_sets)
    if "hvdlite.as_horovod" in sys.modules:  # this is a program for Horovod
        sys.modules["hvdlite.as_horovod"].set_variables()


def shutdown() -> None:
    """Leave the job; return when every rank has left, by this call or by its exit. Collective.

    Tensors that all ranks have submitted are still processed. Tensors that wait for this rank fail
    on the other ranks. ``init()`` may be called again afterwards. Without a job, do nothing.
    """
    if is_initialized():
        frameworks.submit_all()
        _leave(f"it called shutdown(); {_UNEVEN}")


def begin_to_leave() -> None:
    """After a death: make ranks that wait for this rank fail, also in sets without a dead rank."""
    lib.hvd_leave(lib.HVD_ALL_GROUPS, GOES_ON.encode())


def leave_broken() -> None:
    """Leave a job in which a rank has died; the other ranks leave it, too."""
    if is_initialized():
        _leave(GOES_ON)


def _leave(reason: str, patience: float = float("inf")) -> bool:
    """Leave and free everything; return True if no rank failed.

    If other ranks do not leave in time, free nothing and return False.
    """
    lib.hvd_leave(lib.HVD_ALL_GROUPS, reason.replace("\0", "\\0").encode(errors="replace"))
    deadline = time.monotonic() + patience
    while not lib.hvd_wait_end(lib.HVD_ALL_GROUPS, BRIEFLY):
        if time.monotonic() > deadline:
            return False
    sound = lib.hvd_check(new_error()) == lib.HVD_OK
    _jobs.is_broken = not sound
    recorder.before_leaving()
    lib.hvd_flight_bell(-1, b"")
    lib.hvd_close()
    recorder.end()
    agent_protocol.report(agent_protocol.LEFT)
    topology.leave(sound)
    return sound


def join_other_job(place: start.Place, patience: float) -> None:
    """Leave this process's job, if any, and join another job; all ranks of that job call this.

    Ranks that stay in the old job fail as if this rank had died.

    :param patience: seconds to wait for the other job's ranks.
    """
    with _jobs.joining:
        reason = "it goes on with other ranks"
        if is_initialized() and not _leave(reason, STAYING_SECONDS):
            lib.hvd_lose_host(ffi.NULL)
            _leave(reason)
        start.set_place(place)
        start.decide()
        bootstrap().begin(None)
        bootstrap().join(None, patience, membership(), functools.partial(_enter, None))


def at_end(wait: Callable[[], None], before: Callable[[], None], after: Callable[[], None]) -> None:
    """Register functions of a framework: to wait for its work; for before and after leaving.

    From now on this process leaves the job before the exit functions registered so far run: MXNet's
    exit function waits for all operations, so operations that can't complete must fail before it.

    :param after: called only at exit.
    """
    frameworks.register(frameworks.Framework(wait, before, after))
    _run_first_at_exit()


def _run_first_at_exit() -> None:
    atexit.unregister(at_exit)
    atexit.register(at_exit)


def _watch_end_of_a_worker() -> None:
    """Leave when multiprocessing ends this process, because a forked process skips atexit."""
    process = sys.modules.get("multiprocessing.process")
    if process and process.parent_process():
        util = importlib.import_module("multiprocessing.util")
        util.Finalize(None, _end_of_a_worker, exitpriority=0)


def _end_of_a_worker() -> None:
    if not is_initialized():
        return
    if _leave_at_end(script_end.failure_under_way()):
        frameworks.after_exit()


def _leave_at_end(failed: Optional[script_end.Failure]) -> bool:
    if failed:
        return _leave(failed.reason, EXIT_PATIENCE_SECONDS)
    frameworks.submit_all()
    return _leave(GOOD_END)


def at_exit() -> None:
    """Leave or end the job, because the script has ended. The interpreter calls this at exit."""
    failed = script_end.failure()
    until = time.monotonic() + EXIT_PATIENCE_SECONDS
    # Reported now, before other ranks fail because of this rank. sys.excepthook does not do so for
    # SystemExit, or if the user has replaced it.
    if failed:
        agent_protocol.report_raised()
    if not _may_have_others(failed is None):
        return
    membership().give_up(failed.error if failed else None)
    code = failed.code if failed else 1
    of_job = (membership().is_elastic(), is_initialized(), _jobs.has_joined)
    step, clean = ending.first(bool(failed), *of_job, bootstrap().has_others()), True
    if step == ending.GO_ALONE:
        script_end.flush()
        os._exit(code)
    elif step == ending.LEAVE:
        clean = _leave_at_end(failed) or membership().is_elastic()
        if clean:
            frameworks.after_exit()
    elif step == ending.END_THOSE_IN_INIT:
        # another rank failed first, and may need this time to report its failure
        if failed and failed.error and failure_of(failed.error):
            time.sleep(EXIT_PATIENCE_SECONDS)
        clean = False
    elif step == ending.REPORT_END:
        bootstrap().report_end()
    servers.leave(EXIT_PATIENCE_SECONDS if failed or not clean else 0)
    unsaid, others = bool(failed and failed.unsaid), bootstrap().has_others()
    step = ending.last(bool(failed), clean, _jobs.is_broken, unsaid, others)
    if step == ending.END_JOB:
        _end_job(code)
    elif step == ending.END_LATER:
        bootstrap().end_by(until, code, _last_words())
    script_end.call_for_later_failures(_end_of_a_later_failure)


def _may_have_others(well: bool) -> bool:
    """Return True if ranks may wait for this process, even if it has never called init().

    Return False for a child of a rank, because ranks wait only for the rank itself.

    :param well: the script has not failed. If it has failed, the launcher ends ranks in MPI_Init.
    """
    runs_or_can_begin = loaded_mpi.ranks() or (well and start.has_launcher_of_mpi())
    can_tell = start.without_mpi() is not None or runs_or_can_begin
    if can_tell and not start.is_decided() and orphan.is_outermost():
        start.decide()
    return start.is_decided()


def _leave_before_threads_are_joined() -> None:
    """Leave if the script has failed: its threads may wait for ranks that wait for this rank."""
    main = threading.main_thread()
    if script_end.failure() and any(t is not main and not t.daemon for t in threading.enumerate()):
        at_exit()


def _end_of_a_later_failure(later: script_end.Failure) -> None:
    if bootstrap().has_others():
        _end_job(later.code)


def _last_words() -> str:
    return f"hvdlite: rank {bootstrap().rank()} ends the job\n"


def _end_job(code: int) -> None:
    """Force all ranks to end: MPI is broken, or MPI_Finalize would wait for computing ranks."""
    recorder.before_leaving()
    script_end.flush(_last_words())
    if agent_protocol.by_an_agent():  # the agent ends the other ranks and cleans up after them
        os._exit(code)  # after MPI_Abort, some mpiruns kill every process without warning
    bootstrap().end_all(code, EXIT_PATIENCE_SECONDS)


_run_first_at_exit()
# Python waits for threads before it calls atexit functions. The hook below runs earlier. Hooks run
# in reverse order, so it runs before the imported module's hook, which waits for executor threads.
# Python 3.8 lacks such hooks.
with contextlib.suppress(AttributeError, RuntimeError):
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(_leave_before_threads_are_joined)  # type: ignore[attr-defined]
