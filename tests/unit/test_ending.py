"""What a process does when its script ends: the decision tables, without processes."""

import itertools

import pytest

from hvdlite.exit.ending import (
    END_JOB,
    END_LATER,
    END_THOSE_IN_INIT,
    GO_ALONE,
    LEAVE,
    REPORT_END,
    first,
    last,
)

EVERY = list(itertools.product((False, True), repeat=5))


@pytest.mark.parametrize(
    "facts, expected",
    [
        ("in_job ever_joined others", LEAVE),
        ("failed in_job ever_joined others", LEAVE),
        ("failed elastic in_job ever_joined others", GO_ALONE),
        ("elastic in_job ever_joined others", LEAVE),
        ("others", REPORT_END),
        ("failed others", END_THOSE_IN_INIT),
        ("failed", None),
        ("", None),
        ("ever_joined others", None),
        ("failed ever_joined others", None),
    ],
)
def test_the_first_step_of_an_ending_process_fits_its_state(facts, expected):
    names = ("failed", "elastic", "in_job", "ever_joined", "others")
    assert first(*(name in facts.split() for name in names)) == expected


@pytest.mark.parametrize(
    "facts, expected",
    [
        ("clean others", None),
        ("clean broken others", END_LATER),
        ("failed clean others", END_LATER),
        ("failed clean unsaid others", END_JOB),
        ("failed clean unsaid", None),
        ("failed clean broken", None),
        ("failed others", END_JOB),
        ("others", END_JOB),
    ],
)
def test_the_last_step_of_an_ending_process_fits_its_state(facts, expected):
    names = ("failed", "clean", "broken", "unsaid", "others")
    assert last(*(name in facts.split() for name in names)) == expected


def test_a_process_that_ends_in_a_job_never_ends_without_a_first_step():
    assert {first(f, e, True, j, o) for f, e, _, j, o in EVERY} == {LEAVE, GO_ALONE}


def test_other_ranks_never_wait_for_a_script_that_failed_or_did_not_leave():
    steps = {last(f, c, b, u, True) for f, c, b, u, _ in EVERY if f or b or not c}
    assert steps == {END_JOB, END_LATER}
