"""make soak, for seconds instead of an hour."""

import pytest
from jobs import assert_passed, script


@pytest.mark.parametrize("window", ["1", "0"])
def test_a_job_that_lasts_holds_no_more_than_at_the_start(window):
    job = assert_passed(script(2, "soak", "1", env={"HVDLITE_WINDOW": window}))
    assert all(each["rounds"] > 5 for each in job.results().values())
