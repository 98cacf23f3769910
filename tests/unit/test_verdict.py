"""The verdict on a job that has ended: its exit code, its report, and which evidence decides."""

import pytest

from hvdlite.launch.failure import Ending, Signs
from hvdlite.launch.verdict import REFUSED, Evidence, verdict

WELL = Evidence(
    signal=None, refusal=None, elastic=False, endings=[Ending(0, "0", "a", 0, False, 1.0)],
    signs=Signs(), started=True, ended=False, finished=True, backend="/usr/bin/mpirun",
    backend_code=0, backend_lines=["mpirun: bye"], last_lines=lambda rank: [f"line of {rank}"],
)  # fmt: skip
FAILED = [
    Ending(0, "0", "a", -15, True, 2.5),
    Ending(1, "1", "b", 3, False, 2.0),
]
LOST_PEER = [Ending(0, "0", "a", 15, False, 2.0)]


@pytest.mark.parametrize(
    "known, code, report, first",
    [
        ({}, 0, "", ["mpirun: bye"]),
        ({"signal": 2, "endings": FAILED}, 130, "", []),
        ({"refusal": "no\nway", "endings": []}, REFUSED, "hvdliterun: way", []),
        ({"endings": FAILED}, 3, "rank 1 on b failed with exit code 3 after 2.0 s", []),
        ({"endings": FAILED, "elastic": True}, 3, "rank 1 on b failed", []),
        ({"endings": [*FAILED, *WELL.endings], "elastic": True}, 0, "", []),
        ({"endings": LOST_PEER, "last_lines": lambda _: []}, 15, "rank 0", ["mpirun: bye"]),
        ({"endings": LOST_PEER}, 15, "line of 0", []),
        ({"finished": False, "backend_code": 137}, 137, "mpirun was killed by SIGKILL", []),
        ({"finished": False}, 1, "mpirun ended (exit code 0) before its ranks had finished", []),
        ({"backend_code": 1}, 1, "mpirun ended (exit code 1)", []),
        ({"backend_code": 1, "ended": True}, 0, "", ["mpirun: bye"]),
    ],
)
def test_the_most_important_evidence_decides_exit_code_and_report(known, code, report, first):
    found = verdict(WELL._replace(**known))
    assert (found.code, found.first) == (code, first)
    assert report in "\n".join(found.report)
    assert bool(found.report) == bool(report)


def test_the_report_names_the_rank_that_stood_still_and_not_the_waiting_rank():
    signs = Signs()
    signs.add(1, b"1 1 0", 1.9)
    found = verdict(WELL._replace(endings=FAILED, signs=signs))
    assert found.report[0] == (
        "hvdliterun: rank 0 on a stood still, and rank 1 failed after 2.0 s; its last lines:"
    )
    assert found.report[1:] == ["    line of 0"]


def test_the_report_about_a_rank_whose_agent_got_a_signal_names_the_signal():
    """On a busy host, rank 1's report that rank 0 is silent may come before the agent's report."""
    signs = Signs()
    signs.add(1, b"2 1 0", 1.9)
    ended = Ending(0, "0", "a", -15, True, 2.5, signal=15)
    found = verdict(WELL._replace(endings=[ended, FAILED[1]], signs=signs))
    assert found.code == 143
    assert found.report[0].startswith("hvdliterun: rank 0 on a was ended by SIGTERM"), found.report
