"""hvdlite-report merges the timelines of ranks, finds causes of lost time, and draws a page."""

import contextlib
import json
import os
import pwd
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
from traces import spans_of

from hvdlite.monitor import cli, steps, traces, verdict, watching, why
from hvdlite.monitor.traces import Note, Tensor


def tensor(name: str, times, rank: int = 0, batch: int = 1) -> Tensor:
    return Tensor(rank, name, "allreduce", 4000, batch, *times)


def timeline(folder, rank: int, tensors, origin: float = 50.0, offset: float = 0.0) -> str:
    """Write a timeline like the C core's, in microseconds since its start; return its path."""
    clock = {"origin": origin, "offset": offset, "error": 1e-5 * rank}
    events = [{"ph": "M", "name": "hvdlite_clock", "pid": rank, "args": clock}]

    def event(ph, what, number, moment, **more):
        where = {"ph": ph, "cat": "tensor", "id": str(number), "name": what, "pid": rank, "tid": 0}
        events.append({**where, "ts": int(moment * 1e6), **more})

    for number, t in enumerate(tensors):
        event("b", t.name, number, t.submitted)
        for what, begin, end, more in (
            ("negotiate allreduce", t.submitted, t.agreed, {}),
            ("queue", t.agreed, t.started, {}),
            ("allreduce", t.started, t.ended, {"args": {"bytes": t.bytes, "batch": t.batch}}),
        ):
            event("b", what, number, begin, **more)
            event("e", what, number, end)
        event("e", t.name, number, t.ended)
    path = folder / f"trace-{rank}.json"
    path.write_text("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")
    return str(path)


def steps_of_rank(rank: int, late: float, begin: float = 0.0) -> list:
    """Return two tensors for each of five steps of 100 ms; the rank submits `late` seconds late."""
    found = []
    for i in range(5):
        now = begin + 0.1 * i
        for k, name in enumerate(("a", "b")):
            times = (now + late, now + 0.03, now + 0.04, now + 0.05 + 0.01 * k)
            found.append(tensor(name, times, rank, batch=2 * i + k + 1))
    return found


def test_timelines_of_ranks_are_aligned_to_rank_0s_clock(tmp_path):
    """Rank 1's clock is 40 s behind rank 0's, and its timeline begins 1 s before rank 0's."""
    paths = [
        timeline(tmp_path, 0, steps_of_rank(0, 0.0), origin=50.0),
        timeline(tmp_path, 1, steps_of_rank(1, 0.02, begin=-1.0 + 2.0), origin=9.0, offset=40.0),
    ]
    trace = traces.read(paths)
    first = {rank: next(t for t in trace.tensors if t.rank == rank) for rank in (0, 1)}
    assert first[0].submitted == pytest.approx(1.0)
    assert first[1].submitted == pytest.approx(1.02)
    assert trace.error == pytest.approx(1e-5)
    late = steps.lateness(trace.tensors)
    assert late == pytest.approx({0: 0.0, 1: 10 * 0.02}, abs=1e-4)


def test_tensors_of_different_ranks_have_separate_spans_in_the_merged_trace(tmp_path):
    """Viewers join events of one category and id, even of different processes."""
    paths = [timeline(tmp_path, rank, steps_of_rank(rank, 0.0)) for rank in range(2)]
    merged = traces.read(paths).events
    tensors = spans_of(merged)
    assert len(tensors) == 2 * 10
    assert {name for name, _ in tensors} == {"a", "b"}


def test_a_steps_time_is_split_by_cause():
    own = steps_of_rank(0, 0.01)
    assert steps.marks(own) == "a"
    found = steps.steps_of(own, "a")
    assert len(found) == 4
    step = found[1]
    assert step.seconds == pytest.approx(0.1)
    assert step.moving == pytest.approx(0.02)  # both tensors move from 0.04 to 0.06
    assert step.queued == pytest.approx(0.01)
    assert step.waiting == pytest.approx(0.02)
    assert step.alone == pytest.approx(0.05)
    assert step.hidden == 0  # neither tensor moves before both have been submitted


WAITED = [  # a step in which the rank waits for the call "c"
    tensor("a", (0.00, 0.01, 0.01, 0.02)),
    tensor("c", (0.03, 0.05, 0.06, 0.08), batch=2)._replace(waited=True),
    tensor("b", (0.09, 0.09, 0.09, 0.10), batch=3),
    tensor("a", (0.12, 0.13, 0.13, 0.14), batch=4),
]


def test_communication_is_divided_into_hidden_exposed_and_lost_time():
    (step,) = steps.steps_of(WAITED, "a", [Note(0, "update", 0.10, 0.11), Note(0, "input", 0, 1)])
    assert step.hidden == pytest.approx(0.01)  # tensor a
    assert step.exposed == pytest.approx(0.03 + 0.01)  # tensors c and b
    assert step.lost == pytest.approx(0.02)  # tensor c
    assert step.noted == pytest.approx({"update": 0.01, "input": 0.12})


def rank(number=0, late=0.0, host="n1", sent=(4, 0, 1e6), **parts) -> verdict.RankSteps:
    """Return the RankSteps of a rank with ten steps of 100 ms."""
    noted = {name: parts.pop(name) for name in ("input", "update") if name in parts}
    plain = dict.fromkeys(("moving", "queued", "waiting", "hidden", "exposed", "lost"), 0.0)
    return verdict.RankSteps(
        number, host, [steps.Step(0, 0.1, **{**plain, **parts}, noted=noted)] * 10, late, *sent
    )


LATE = rank(1, late=0.4)
READS = LATE._replace(steps=rank(input=0.05).steps)
VERDICTS = [  # ranks, the fault that is found, its part of a step's time, words of the report
    ([rank(lost=0.04), LATE], "slow rank", 0.4, "rank 1 on n1 works 1.7x as long"),
    ([rank(lost=0.04), READS], "slow rank", 0.4, "input during 50%"),
    ([rank(lost=0.02, late=0.3), rank(1, late=0.1, lost=0.02)], "uneven ranks", 0.2, "in turn"),
    ([rank(exposed=0.03), rank(1, exposed=0.03, host="n2")], "network", 0.3, "at 0.27 Gbit/s"),
    ([rank(exposed=0.03), rank(1, exposed=0.03)], "exposed", 0.3, "1.0 MB a step"),
    ([rank(exposed=0.03, sent=(200, 190, 1e5))] * 2, "small tensors", 0.3, "190 of 200 tensors"),
    ([rank(exposed=0.03, sent=(4, 4, 6e3))] * 2, "short steps", 0.3, "larger batches or backward_"),
    ([rank(exposed=0.03, sent=(4, 4, 6e3))] * 2, "short steps", 0.3, "70% the ranks' work"),
    ([rank(input=0.05), rank(1, input=0.06)], "input", 0.5, "num_workers"),
    ([rank(update=0.05), rank(1, update=0.06)], "update", 0.5, "foreach"),
    ([rank(lost=0.005, exposed=0.005, input=0.005, update=0.005)] * 2, None, 0, "nothing to gain"),
    ([rank(lost=0.012), rank(1, lost=0.012)], None, 0, "nothing to gain"),
    ([each._replace(steps=each.steps[:2]) for each in (rank(lost=0.04), LATE)], None, 0, "too few"),
    ([], None, 0, "no steps to judge"),
]  # fmt: skip


@pytest.mark.parametrize("ranks, cause, share, words", VERDICTS)
def test_the_verdict_names_the_cause_of_lost_time(ranks, cause, share, words):
    found = verdict.findings(ranks)
    assert [each.cause for each in found] == ([cause] if cause else [])
    assert not found or found[0].share == pytest.approx(share)
    text = verdict.text("job ab", ranks, found)
    assert words in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_the_verdict_names_the_host_for_which_transfers_wait():
    ranks = [rank(exposed=0.03), rank(1, exposed=0.03, host="n2")]
    assert "wait for n2 most" in verdict.findings(ranks, {1: 9, 0: 2})[0].what


def test_hvdlite_why_finds_the_slow_rank_in_timelines(tmp_path, capsys):
    paths = [timeline(tmp_path, rank, steps_of_rank(rank, 0.03 * rank)) for rank in range(3)]
    assert why.main(paths) == 0
    assert "rank 2 works 1." in " ".join(capsys.readouterr().out.split())


class Recorded(contextlib.nullcontext):
    """A fake recorder of one rank of a job; the rank is this process."""

    def __init__(self, job: str, rank: int) -> None:
        super().__init__()
        began = time.monotonic() - 61
        self._head = {"job": job, "rank": rank, "pid": os.getpid(), "began": began}

    def head(self) -> dict:
        return self._head


def test_several_jobs_are_listed_with_command_user_process_and_age(monkeypatch):
    found = [Recorded("ab1", 1), Recorded("ab1", 0), Recorded("cd2", 0)]
    monkeypatch.setattr(watching.memory, "find", lambda: found)
    with pytest.raises(watching.memory.NoRecorder) as raised:
        watching.job_of(None)
    _, first, second = str(raised.value).splitlines()
    user = pwd.getpwuid(os.getuid()).pw_name
    assert re.match(rf"  ab1  .*py.* \(2 ranks, user {user}, pid {os.getpid()}, for 1 min", first)
    assert second.startswith("  cd2  ") and "(1 ranks" in second
    assert watching.job_of("c") == "cd2"


def test_a_trace_in_which_no_tensor_repeats_has_no_steps():
    assert steps.marks([tensor("a", (0, 1, 2, 3)), tensor("b", (0, 1, 2, 3))]) is None


def test_the_report_lists_the_slowest_tensor_first():
    rows = steps.slowest([tensor("a", (0, 1, 2, 3)), tensor("b", (0, 2, 4, 9))])
    assert [row.name for row in rows] == ["b", "a"]
    assert rows[0][2:] == (2, 2, 5)


def test_an_incomplete_timeline_of_a_killed_rank_is_read_to_its_end(tmp_path):
    path = timeline(tmp_path, 0, steps_of_rank(0, 0.0))
    text = (tmp_path / "trace-0.json").read_text()
    counts = []
    for end in range(text.index("\n", 2) + 1, len(text)):
        (tmp_path / "trace-0.json").write_text(text[:end])
        counts.append(len(traces.read([path]).tensors))
    assert counts == sorted(counts) and set(counts) == set(range(11))


def test_a_wait_before_a_small_tensor_counts_as_exposed_communication(tmp_path):
    """A step ends with a small allreduce, of the loss; the gradient's runs from 0.01 to 0.07 s."""
    own = []
    for i in range(3):
        own += [tensor("a", (0.1 * i, 0.1 * i + 0.01, 0.1 * i + 0.01, 0.1 * i + 0.07))]
        own += [tensor("loss", [0.1 * i + 0.071] * 4)]
    assert steps.steps_of(own, "a")[1].exposed == pytest.approx(0.06)
    # the gradient now ends long before the loss, so the rank computes in between
    own[2] = own[2]._replace(ended=0.13)
    assert steps.steps_of(own, "a")[1].exposed == 0


def test_the_report_counts_the_pieces_of_a_tensor_as_one_tensor(tmp_path):
    path = Path(timeline(tmp_path, 0, steps_of_rank(0, 0.0)))
    text = path.read_text().replace('"batch": 2}', '"batch": 2, "later": true}')
    path.write_text(text.replace('"name": "b"', '"name": "a"'))
    first, *_ = found = traces.read([str(path)]).tensors
    assert len(found) == 9 and first.ended == pytest.approx(0.06)


@pytest.mark.parametrize(
    "text, why",
    [("{}", "not a timeline"), ("[]", "no clock"), ("[x", "no clock"), ("[1]", "no clock")],
)
def test_files_that_are_not_timelines_are_refused(tmp_path, capsys, text, why):
    (tmp_path / "x.json").write_text(text)
    pytest.importorskip("matplotlib")
    assert cli.main([str(tmp_path / "x.json")]) == 2
    assert why in capsys.readouterr().err


def test_two_timelines_of_one_rank_are_refused(tmp_path):
    path = timeline(tmp_path, 0, steps_of_rank(0, 0.0))
    (tmp_path / "again.json").write_text((tmp_path / "trace-0.json").read_text())
    with pytest.raises(traces.BadTrace, match="both of rank 0"):
        traces.read([path, str(tmp_path / "again.json")])


@pytest.mark.parametrize("option", ["--trace", "--output"])
@pytest.mark.parametrize("where, why", [("/dev/full", "No space left"), ("/proc/x", "No such")])
def test_the_error_names_a_file_that_cannot_be_written(
    tmp_path, monkeypatch, capsys, option, where, why
):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    path = timeline(tmp_path, 0, steps_of_rank(0, 0))
    assert cli.main([path, option, where]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"hvdlite-report: {where} can't be written: {why}")


def test_the_report_page_needs_no_other_file(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    paths = [timeline(tmp_path, rank, steps_of_rank(rank, 0.02 * rank)) for rank in range(3)]
    about = ', "job": "ab1", "host": "n<2>", "began": "2026-11-25 20:00:00"}}'
    Path(paths[1]).write_text(Path(paths[1]).read_text().replace("}}", about, 1))
    for path in map(Path, paths):
        path.write_text(path.read_text().replace('"name": "b"', '"name": "b$^$"'))
    assert cli.main(paths) == 0
    text = (tmp_path / "report.html").read_text()
    found = {"svg": 0}

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found[tag] = found.get(tag, 0) + 1

    Tags().feed(text)
    assert found["svg"] == 6
    assert "script" not in found
    assert "b$^$ (" in text
    assert "<h1>job ab1 on n&lt;2&gt;, 2026-11-25 20:00:00</h1>" in text
    assert "Rank 2 caused 100% of this time." in text
    assert not re.search(r'(?:src|href)="https?:', text)
    assert len(text) < 200_000
    assert json.loads((tmp_path / "trace.json").read_text())
