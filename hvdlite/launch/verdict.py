"""Judges a job that has ended."""

from typing import Callable, List, NamedTuple, Optional

from hvdlite.launch import failure, sentences
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
    last_lines: Callable[[int], List[str]]  # returns the last lines of a rank


class Verdict(NamedTuple):
    """The job's exit code, and what hvdliterun prints about its end."""

    code: int
    report: List[str] = []  # lines for the user about a failure
    first: List[str] = []  # lines of the backend, to be shown before the report


def verdict(evidence: Evidence) -> Verdict:
    """Judge the job by the first of these conditions that is true.

    The user ended it; it was not started; a rank of an elastic job ended well; a rank failed;
    all ranks have finished; the backend ended too soon.
    """
    if evidence.signal is not None:
        return Verdict(128 + evidence.signal)
    if evidence.refusal:
        return Verdict(REFUSED, [f"hvdliterun: {line}" for line in evidence.refusal.splitlines()])
    if evidence.elastic and any(not (e.failed or e.ended) for e in evidence.endings):
        return Verdict(0)
    first = failure.lost(evidence.endings) or _first_failure(evidence)
    if first:
        return _of_failure(first, evidence)
    code = evidence.backend_code
    if evidence.finished and (code == 0 or evidence.ended):
        return Verdict(0, first=evidence.backend_lines)
    why = sentences.report_backend(evidence.backend, code, evidence.started)
    return Verdict(code or 1, [*evidence.backend_lines, why])


def _first_failure(evidence: Evidence) -> Optional[Ending]:
    if evidence.elastic:
        return failure.last(evidence.endings)
    return failure.culprit(evidence.endings, evidence.signs) or failure.signaled(evidence.endings)


def _of_failure(first: Ending, evidence: Evidence) -> Verdict:
    code = failure.exit_code(first)
    late, more = failure.who_stood_still(first, evidence.endings, evidence.signs)
    if late:
        lines = evidence.last_lines(late[0].rank)
        return Verdict(code, sentences.report_standstill(late, more, first, lines))
    lines = evidence.last_lines(first.rank)
    # If the rank has printed nothing, mpirun's lines may say why MPI has ended the rank.
    before = evidence.backend_lines if not lines and first.code in failure.LOST_PEER else []
    return Verdict(code, sentences.report(first, code, lines, len(evidence.endings) - 1), before)
