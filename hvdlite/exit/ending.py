"""Decides what a process does when its script ends, so that no rank waits for it forever."""

from typing import Optional, Sequence, Tuple

# The steps that first() returns, and the steps that last() returns.
GO_ALONE, LEAVE, END_THOSE_IN_INIT, REPORT_END = "go alone", "leave", "end", "report end"
END_JOB, END_LATER = "end job", "end later"

# Values of a function's arguments (None: any value), and the step that the function returns.
_Row = Tuple[Tuple[Optional[bool], ...], str]

# the rows for first(), with its arguments in order
_FIRST: Sequence[_Row] = (
    ((True, True, None, None, None), GO_ALONE),  # elastic: the other ranks go on
    ((None, None, True, None, None), LEAVE),
    ((True, None, None, False, True), END_THOSE_IN_INIT),  # ranks in init() wait for this rank
    ((False, None, None, False, True), REPORT_END),
)
# the rows for last(), with its arguments in order
_LAST: Sequence[_Row] = (
    ((None, False, None, None, None), END_JOB),
    ((True, None, None, True, True), END_JOB),  # with exit code 0 no launcher ends the others
    ((True, None, None, None, True), END_LATER),  # MPI_Finalize may wait for other ranks for hours
    ((None, None, True, None, True), END_LATER),
)


def first(
    failed: bool, elastic: bool, in_job: bool, ever_joined: bool, others: bool
) -> Optional[str]:
    """Return the step with which this process leaves its job; None: no step.

    :param others: other processes may wait for this one.
    """
    return _first_fit(_FIRST, failed, elastic, in_job, ever_joined, others)


def last(failed: bool, clean: bool, broken: bool, unsaid: bool, others: bool) -> Optional[str]:
    """Return the step that ends the other processes; None: this process ends as usual.

    :param clean: False: an earlier step failed, so other processes may still wait for this one.
    :param unsaid: the script failed, and Python would end with exit code 0.
    """
    return _first_fit(_LAST, failed, clean, broken, unsaid, others)


def _first_fit(rows: Sequence[_Row], *facts: bool) -> Optional[str]:
    fit = (step for row, step in rows if all(r in (None, f) for r, f in zip(row, facts)))
    return next(fit, None)
