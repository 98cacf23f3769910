"""What each technique brings: each work with and without it, by turns in the same processes.

The machine changes from one job to the next by more than most techniques bring.
"""

import os
from typing import Dict, Iterator, List

import hvdlite as hvd
from benchmarks import plan
from hvdlite.bench import measure
from hvdlite.bench.cases import Case


def rows(library, cases: List[Case], comm, seconds: float) -> Iterator[dict]:
    """Yield a row for each case and technique. Collective.

    :param seconds: for each of the four times that a case is measured.
    """
    for case in cases:
        for technique in plan.TECHNIQUES:
            # In an order in which a machine that gets faster or slower is the same to both.
            times = [
                seconds_under(off, library, case, comm, seconds)
                for off in ({}, technique.off, technique.off, {})
            ]
            ratio = (times[1] + times[2]) / (times[0] + times[3])
            yield {"name": technique.without(case.name), "ratio": ratio}


def seconds_under(settings: Dict[str, str], library, case: Case, comm, seconds: float) -> float:
    """Return the time of a case in a job that is begun with these settings."""
    hvd.shutdown()
    os.environ.update(settings)
    hvd.init()
    for name in settings:
        del os.environ[name]
    return measure.measure(library, case, comm, seconds)["p50"]
