"""Judges a job that has ended, and writes what hvdliterun prints about its end."""

import os
import signal
from typing import Callable, List, NamedTuple, Optional

from hvdlite.core.agent_protocol import TOO_LATE
from hvdlite.launch import failure
from hvdlite.launch.failure import Ending, Signs

REFUSED = 2  # exit code: no rank's program has run


class Evidence(NamedTuple):
    """What the launcher knows of a job that has ended."""

    signal: Optional[int]  # the signal by which the user ended the job
    refusal: Optional[str]  # why no rank's program was started
    elastic: bool
    endings: List[Ending]  # the ends of the ranks that took part in training
    signs: Signs
    started: bool  # True: the ranks' programs were started
    ended: bool  # True: the launcher ended the job
    finished: bool  # True: all ranks that train have ended by themselves and without failure
    backend: str  # the path of the backend's program
    backend_code: int
    backend_lines: List[str]  # the last lines of the backend
    last_lines: Callable[[int], List[str]]  # returns the last lines of a rank's output


class Verdict(NamedTuple):
    """The job's exit code, and what hvdliterun prints about its end."""

    code: int
    report: List[str] = []  # lines for the user about a failure
    first: List[str] = []  # the backend's lines, which hvdliterun prints before the report


def verdict(evidence: Evidence) -> Verdict:
    """Judge the job by the first of these conditions that is true.

    The user ended the job; no rank was started; a rank of an elastic job ended well; a rank failed;
    all ranks have finished; the backend ended too soon.
    """
    if evidence.signal is not None:
        return Verdict(128 + evidence.signal)
    if evidence.refusal:
        return Verdict(REFUSED, [f"hvdliterun: {line}" for line in evidence.refusal.splitlines()])
    if evidence.elastic and any(not (e.failed or e.ended) for e in evidence.endings):
        return Verdict(0)
    ends = evidence.endings
    first = failure.lost(ends)
    if evidence.elastic:
        first = first or failure.last(ends)
    else:
        first = first or failure.culprit(ends, evidence.signs) or failure.signaled(ends)
    if first:
        return _of_failure(first, evidence)
    code = evidence.backend_code
    if evidence.finished and (code == 0 or evidence.ended):
        return Verdict(0, first=evidence.backend_lines)
    why = report_backend(evidence.backend, code, evidence.started)
    return Verdict(code or 1, [*evidence.backend_lines, why])


def _of_failure(first: Ending, evidence: Evidence) -> Verdict:
    code = failure.exit_code(first)
    late, more = failure.who_stood_still(first, evidence.endings, evidence.signs)
    if late:
        lines = evidence.last_lines(late[0].rank)
        return Verdict(code, report_standstill(late, more, first, lines))
    lines = evidence.last_lines(first.rank)
    # If the rank has printed nothing, mpirun's lines may say why MPI has ended the rank.
    before = evidence.backend_lines if not lines and first.code in failure.LOST_PEER else []
    return Verdict(code, report(first, code, lines, len(evidence.endings) - 1), before)


def report_standstill(
    late: List[Ending], more: int, first: Ending, last_lines: List[str]
) -> List[str]:
    """Return the report about late ranks, for which the others waited.

    :param last_lines: the last lines that the first late rank printed.
    """
    ends = "; its last lines:" if last_lines else ", and had printed nothing"
    who = f"rank {late[0].label} on {late[0].host}"
    more += len(late) - 1
    if more:
        ends = ends.replace("its", f"rank {late[0].label}'s")
        who += f" and {more} more"
    head = f"hvdliterun: {who} stood still, and rank {first.label} failed after {first.after:.1f} s"
    return [head + ends, *(f"    {x}" for x in last_lines)]


def report(first: Ending, code: int, last_lines: List[str], others: int) -> List[str]:
    ends = "; its last lines:" if last_lines else ", and had printed nothing"
    lines = [_sentence(first, code) + ends]
    lines += [f"    {line}" for line in last_lines]
    if others:
        whom = "one was" if others == 1 else f"{others} were"
        lines.append(f"hvdliterun: the other {whom} ended")
    return lines


def report_backend(path: str, code: int, started: bool) -> str:
    """Return the report about a backend that ended too soon. Codes above 159 name no signal."""
    ended = f"was killed by {signal_name(code - 128)}" if 128 < code < 160 else "ended"
    when = "its ranks had finished" if started else "all ranks had started"
    return f"hvdliterun: {os.path.basename(path)} {ended} (exit code {code}) before {when}"


def report_death(end: Ending) -> List[str]:
    """Return the report about a rank that has failed in a job that goes on."""
    return [] if end.code == TOO_LATE else [_sentence(end, end.status) + "; the others go on"]


def _sentence(end: Ending, code: int) -> str:
    label = f"rank {end.label}" if end.label.isdigit() else end.label
    ended = f"failed with exit code {code}"
    if not (end.code or end.goodbye):
        ended = "ended with exit code 0 before it had left the job"
    if end.code < 0 and not end.ended:
        ended = f"was killed by {signal_name(-end.code)} (exit code {code})"
    if end.signal:
        ended = f"was ended by {signal_name(end.signal)}, which another process sent to its agent,"
    if end.silent and not end.ended:
        ended = f"ended without a report (it was killed, or {end.host} went down)"
    if end.silence:
        ended = (
            f"was lost (its host has not answered for {end.silence:.0f} s: its power or network)"
        )
    return f"hvdliterun: {label} on {end.host} {ended} after {end.after:.1f} s"


def signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return name + (", perhaps for lack of memory" if name == "SIGKILL" else "")
