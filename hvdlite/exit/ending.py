"""What a process does as its script ends, so that no rank waits for this process without end."""

from typing import Optional, Sequence, Tuple

# The first steps, and the last ones.
GO_ALONE, LEAVE, END_THOSE_IN_INIT, REPORT_END = "go alone", "leave", "end", "report end"
END_JOB, END_LATER = "end job", "end later"

_Row = Tuple[Tuple[Optional[bool], ...], str]  # facts, None: either; the step

# failed, elastic, is in a job, has ever joined one, has others
_FIRST: Sequence[_Row] = (
    ((True, True, None, None, None), GO_ALONE),  # the other ranks go on
    ((None, None, True, None, None), LEAVE),
    ((True, None, None, False, True), END_THOSE_IN_INIT),  # a clean end would wait for them
    ((False, None, None, False, True), REPORT_END),
)
# failed, has left the job cleanly, the last job has failed, ends with exit code 0, has others
_LAST: Sequence[_Row] = (
    ((None, False, None, None, None), END_JOB),
    ((True, None, None, True, True), END_JOB),  # nobody else ends them
    ((True, None, None, None, True), END_LATER),  # they may compute for hours
    ((None, None, True, None, True), END_LATER),
)


def first(
    failed: bool, elastic: bool, in_job: bool, ever_joined: bool, others: bool
) -> Optional[str]:
    """Return what this process does about its job; None: nothing.

    :param others: other processes may wait for this one.
    """
    return _of(_FIRST, failed, elastic, in_job, ever_joined, others)


def last(failed: bool, clean: bool, broken: bool, unsaid: bool, others: bool) -> Optional[str]:
    """Return what this process does about the other processes; None: it ends as usual.

    :param clean: every step before left nobody behind.
    :param unsaid: the script failed, and Python would end with exit code 0.
    """
    return _of(_LAST, failed, clean, broken, unsaid, others)


def _of(rows: Sequence[_Row], *facts: bool) -> Optional[str]:
    fit = (step for row, step in rows if all(r in (None, f) for r, f in zip(row, facts)))
    return next(fit, None)
