"""Makes this process leave its job when the process ends, so that no rank waits for it forever."""

import atexit
import contextlib
import importlib
import os
import sys
import threading
import time
import traceback
from typing import Callable, Optional

from hvdlite.bootstrap import servers
from hvdlite.core import agent_protocol, frameworks, limits, start, topology
from hvdlite.core.agent_protocol import FOLD
from hvdlite.core.native import RANK_DEAD, STALLED, failure_of
from hvdlite.core.topology import is_initialized
from hvdlite.exit import ending, orphan, script_end
from hvdlite.joined import UNEVEN, bootstrap, jobs, leave, membership
from hvdlite.monitor import recorder

# seconds for which a failed script waits before it ends the job
EXIT_PATIENCE_SECONDS = limits.limit_of(limits.EXIT)
GOOD_END = f"its script has ended; {UNEVEN}"


def at_end(wait: Callable[[], None], before: Callable[[], None], after: Callable[[], None]) -> None:
    """Register functions of a framework. ``wait`` waits for the operations in its queue.

    From now on this process leaves the job before Python calls the exit functions registered so
    far. MXNet's exit function waits for all operations; leaving ends those that wait for ranks.

    :param before: called before this process leaves the job; submits queued tensors.
    :param after: called after this process has left, only at exit.
    """
    frameworks.register(frameworks.Framework(wait, before, after))
    _run_first_at_exit()


def _run_first_at_exit() -> None:
    atexit.unregister(at_exit)
    atexit.register(at_exit)


def begin() -> None:
    """Watch how the script ends. Called before this process joins a job."""
    if jobs.end_is_watched:
        return
    jobs.end_is_watched = True
    script_end.watch_uncaught(_before_a_traceback)
    _watch_end_of_a_worker()


def _before_a_traceback(error: BaseException) -> Optional[str]:
    """Report the error to the agent; return a text in place of the error's traceback, or None.

    There is a text if other ranks have caused the error and the user wants folded tracebacks.
    """
    failed = failure_of(error)
    if not (failed and failed.ranks) or _own_rank() in failed.ranks:
        agent_protocol.report_raised()
        return None
    cause = {STALLED: agent_protocol.STALLED, RANK_DEAD: agent_protocol.SILENT}.get(
        failed.kind or "", 0
    )
    agent_protocol.report_raised(cause, failed.ranks)
    if os.environ.get(FOLD) != "1":
        return None
    text = "".join(traceback.format_exception_only(type(error), error)).rstrip("\n")
    return f"{text} (traceback folded: another rank is to blame)"


def _own_rank() -> int:
    # a script without a job may have failed in init(), or have called shutdown() in a `finally`
    return topology.rank() if is_initialized() else bootstrap().rank()


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
        return leave(failed.reason, EXIT_PATIENCE_SECONDS)
    frameworks.submit_all()
    return leave(GOOD_END)


def at_exit() -> None:
    """Leave or end the job, because the script has ended. The interpreter calls this at exit."""
    failed = script_end.failure()
    # Report now, before other ranks fail because of this rank: sys.excepthook did not report a
    # SystemExit, nor any exception if the user has replaced the hook. A process that has not called
    # init() may be a child of the rank.
    if failed and jobs.end_is_watched:
        agent_protocol.report_raised()
    until = time.monotonic() + EXIT_PATIENCE_SECONDS
    if not _may_have_others(failed is None):
        return
    try:
        members = membership()
    except ImportError:  # there is no mpi4py, or no C library for its MPI, so no rank can join
        return
    members.give_up(failed.error if failed else None)
    code = failed.code if failed else 1
    of_job = (members.is_elastic(), is_initialized(), jobs.has_joined)
    step, clean = ending.first(bool(failed), *of_job, bootstrap().has_others()), True
    if step == ending.GO_ALONE:
        script_end.flush()
        os._exit(code)
    elif step == ending.LEAVE:
        clean = _leave_at_end(failed) or members.is_elastic()
        if clean:
            frameworks.after_exit()
    elif step == ending.END_THOSE_IN_INIT:
        # if another rank's failure caused this one, wait until the other rank has reported first
        if failed and failed.error and failure_of(failed.error):
            time.sleep(EXIT_PATIENCE_SECONDS)
        clean = False
    elif step == ending.REPORT_END:
        bootstrap().report_end()
    servers.leave(EXIT_PATIENCE_SECONDS if failed or not clean else 0)
    unsaid, others = bool(failed and failed.unsaid), bootstrap().has_others()
    step = ending.last(bool(failed), clean, jobs.is_broken, unsaid, others)
    if step == ending.END_JOB:
        _end_job(code)
    elif step == ending.END_LATER:
        bootstrap().end_by(until, code, _end_message())
    script_end.call_for_later_failures(_end_of_a_later_failure)


def _may_have_others(well: bool) -> bool:
    """Return True if ranks may wait for this process, even if it has never called init().

    Return False for a child of a rank, because ranks wait only for the rank itself.

    :param well: True: the script has not failed.
    """
    if not start.is_decided() and start.can_decide_at_end(well) and orphan.is_outermost():
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


def _end_message() -> str:
    return f"hvdlite: rank {bootstrap().rank()} ends the job\n"


def _end_job(code: int) -> None:
    """Force all ranks to end: MPI is broken, or MPI_Finalize would wait for computing ranks."""
    recorder.before_leaving()
    script_end.flush(_end_message())
    # Not MPI_Abort, which may kill the agents: hvdliterun's agent ends the other ranks.
    if agent_protocol.by_an_agent():
        os._exit(code)
    bootstrap().end_all(code, EXIT_PATIENCE_SECONDS)


_run_first_at_exit()
# This hook must run before Python waits for threads, and before the hook of concurrent.futures
# waits for executors' threads. Hooks run in reverse order of registration. Python 3.8 lacks hooks.
with contextlib.suppress(AttributeError, RuntimeError):
    importlib.import_module("concurrent.futures.thread")
    threading._register_atexit(_leave_before_threads_are_joined)  # type: ignore[attr-defined]
