"""The flight recorder: reports about ranks that stand still or die, hvdlite-top and hvdlite-why."""

import os
import pty
import re
import sys
import time

import pytest
from jobs import TESTS, alone, assert_passed, script
from places import start_ranks

from hvdlite.monitor import live, memory, report, rows, top, watching, why


def only(folder, pattern: str) -> str:
    (path,) = folder.glob(pattern)
    return path.read_text()


def part_of(text: str, rank: int) -> str:
    """Return the part of a report about one rank, below the summary."""
    return text.split(f"---- rank {rank} ")[1].partition("\n---- ")[0]


def test_a_stall_report_has_stacks_and_the_job_goes_on(tmp_path):
    env = {"HVDLITE_REPORTS": str(tmp_path), "HVDLITE_STALL_CHECK_TIME_SECONDS": "3"}
    job = assert_passed(script(3, "recorded", "stalls", str(tmp_path), env=env))
    stalls = [path.read_text() for path in tmp_path.glob("hvdlite-report-*-stall-*.txt")]
    # On a loaded machine other tensors may stall, too.
    text = next(text for text in stalls if "'allreduce.late' has waited" in text)
    assert "submitted by ranks 0, 2, not by rank 1" in text
    assert "runs; has waited for rank 1 for" in text
    assert "'allreduce.late' (4.0 kB, not submitted by all ranks)" in text
    assert "allreduce.late" not in part_of(text, 1)
    assert "in where_it_stands" in part_of(text, 1)
    for rank in range(3):
        assert "C stack of the main thread:" in part_of(text, rank)
        assert "done       12    4.0 kB  allreduce.gradient3" in part_of(text, rank)
    assert f"what each rank did last is in {tmp_path}" in job.output
    assert all(result["heard"] for result in job.results().values()), "the script's signal handler"


def test_writing_stacks_while_threads_end_does_not_crash():
    code = """if True:
        import _thread, os, time
        import hvdlite as hvd
        from hvdlite.monitor import report
        hvd.init()
        def deep(frames):
            return frames and deep(frames - 1)
        def keep_doing(what, *args):
            while True:
                what(*args)
                time.sleep(1e-5)
        begin = _thread.start_new_thread
        begin(keep_doing, (begin, deep, (50,)))
        begin(keep_doing, (os.kill, os.getpid(), report.STACKS_SIGNAL))
        time.sleep(1)
        print("lives")
    """
    assert alone(code) == "lives\n"


def test_the_report_of_survivors_has_the_last_operation_of_the_dead_rank(tmp_path):
    recorded = str(TESTS / "scripts" / "recorded.py")
    start_ranks(3, recorded, "dies", str(tmp_path), env={"HVDLITE_REPORTS": str(tmp_path)})
    text = only(tmp_path, "hvdlite-report-*-failure.txt")
    assert "\nrank 1 (process " in text.partition("3 of 3 ranks, transport tcp:")[0]
    dead = part_of(text, 1)
    assert "no stacks: the process has ended" in dead
    assert "done       12    4.0 kB  allreduce.gradient3" in dead
    assert "allreduce.late" not in dead


def test_stall_reports_of_shorter_and_shorter_names_are_right(tmp_path):
    """The recorder writes all names to one buffer; a long name must not show after a short one."""
    env = {"HVDLITE_REPORTS": str(tmp_path), "HVDLITE_STALL_CHECK_TIME_SECONDS": "1"}
    assert_passed(script(2, "recorded", "shrinks", str(tmp_path), env=env))
    # On a loaded machine other tensors may stall, too.
    told = "\n".join(path.read_text().splitlines()[1] for path in tmp_path.glob("*-stall-*.txt"))
    for name in ("a" * 200, "波" * 60, "c"):
        line = (
            rf"^tensor 'allreduce.{name}' has waited for \S+ s: submitted by rank 0, not by rank 1$"
        )
        assert re.search(line, told, re.M), told


def test_a_file_that_is_not_a_flight_recorder_is_refused(tmp_path):
    (tmp_path / "x").write_bytes(b"hvdlite flight 0;bytes 1;" + bytes(4000))
    with pytest.raises(memory.NoRecorder, match="is not a flight recorder"):
        memory.Recorder(str(tmp_path / "x"))


# ------------------------------------------------------------------- several recorders together
def op(name: str, phase: str, number: int, submitted: float, **more) -> dict:
    times = {"agreed": 0.0, "started": 0.0, "ended": 0.0}
    plain = {"number": number, "name": name, "phase": phase, "submitted": submitted, "bytes": 4000}
    return {**plain, **times, "batch": 0, "group": 0, "kind": "allreduce", **more}


def snapshot(rank: int, ops=(), size=3, now=100.0, offset=0.0, **head) -> memory.Snapshot:
    plain = dict.fromkeys(
        ("steps", "bytes_sent_network", "bytes_sent_window", "waited", "waits_since", "waits_for"),
        0,
    )
    where = {"rank": rank, "size": size, "pid": 10 + rank, "host": "n1", "job": "ab"}
    where.update(transport="mpi", stacks=0)
    times = {"began": 90.0, "clock_offset": offset}
    return memory.Snapshot({**plain, **where, **times, **head}, list(ops), "runs", now)


def test_the_report_names_ranks_that_have_not_submitted_a_tensor():
    ranks = [
        snapshot(0, [op("a", "done", 1, 98, ended=98.5), op("b", "waits", 2, 99)]),
        snapshot(1, [op("a", "done", 1, 98, ended=98.5)]),
        snapshot(2, [op("b", "waits", 2, 99.5)]),
    ]
    wait = live.wait_of(ranks[0], ranks)
    assert wait.ranks == [1]
    assert wait.seconds == 1
    assert live.wait_of(ranks[1], ranks) is None


def test_the_report_names_the_rank_for_which_a_transfer_waits():
    one = snapshot(0, [op("a", "moves", 1, 98)], waits_for=3, waits_since=int(97e9))
    assert live.wait_of(one, [one]) == live.Wait(3.0, [2], one.ops[0])


def test_no_rank_is_blamed_for_an_operation_of_a_process_set():
    one = snapshot(0, [op("a", "waits", 1, 98, group=7)])
    assert live.wait_of(one, [one]).ranks == []


def test_the_straggler_is_found_if_the_clocks_of_ranks_differ():
    def ops(late: float) -> list:  # the clock of rank 1 is 5 s ahead
        return [op(f"g{i}", "done", i, 10 + i + late, batch=i + 1, ended=11 + i) for i in range(20)]

    ranks = [snapshot(0, ops(0.1)), snapshot(1, ops(5.0), offset=-5), snapshot(2, ops(0.2))]
    assert live.lateness(ranks) == pytest.approx({0: 0, 1: 0, 2: 20 * 0.1})
    assert live.straggler(ranks) == 2
    assert live.straggler(ranks[:1]) is None


def test_rates_between_two_samples_include_an_ongoing_wait():
    before = snapshot(0, steps=10, bytes_sent_network=1000, waited=int(1e9))
    after = snapshot(
        0, now=102.0, steps=16, bytes_sent_network=4000, waited=int(1.5e9), waits_since=int(101.5e9)
    )
    assert live.rates(before, after) == live.Rates(3.0, 1500.0, 0.5)


# ----------------------------------------------------------------------------------- hvdlite-top
def test_hvdlite_top_sorts_ranks_by_a_column():
    before = snapshot(0, steps=1)
    after = snapshot(
        0, [op("b", "waits", 2, 99.5)], now=101.0, steps=4, bytes_sent_network=2_000_000
    )
    dead = snapshot(1)._replace(state="has ended")
    second, first = rows.build([after, dead], {0: before}, by="steps/s")
    cells = [column.text(first) for column in rows.COLUMNS]
    expected = ["0", "n1", "10", "3.0", "", "2.0 MB", "0%", "ranks 1-2, 1.50 s"]
    assert cells == [*expected, "waits allreduce b"]
    assert rows.COLUMNS[-2].text(second) == "has ended"


def test_keys_select_what_hvdlite_top_shows():
    view = top.View()
    for key in ("x", top.DOWN, "j", "j", "k", "s"):  # the second "j" selects the third rank
        view = top.pressed(view, key, [2, 0, 1])
    assert view == top.View("steps/s", 0)
    view = top.pressed(view, top.ESCAPE, [2, 0, 1])
    assert top.pressed(view, "q", []) == top.View("steps/s", None, True)
    assert list(top._until(0, lambda seconds: "q")) == ["q"]  # --every 0 must also read the keys


SHOWN = """
import os, sys, threading, time, numpy, hvdlite as hvd
from hvdlite.monitor import top
hvd.init()
def step():
    while True:
        hvd.numpy.allreduce(numpy.ones(5), name="of_a_step")
        time.sleep(0.01)
threading.Thread(target=step, daemon=True).start()
time.sleep(0.5)
status = top.main([str(os.getpid()), "--every", "0.2"])
os._exit(status)
"""


@pytest.mark.parametrize("width", [80, 200])
def test_hvdlite_top_in_a_terminal_obeys_keys(width):
    pytest.importorskip("rich")
    pid, terminal = pty.fork()
    if not pid:
        os.environ.update(COLUMNS=str(width), LINES="24", TERM="xterm")
        os.execv(sys.executable, [sys.executable, "-c", SHOWN])
    shown = b""
    for awaited, key in ((b"step times", b"s\x1b[B"), (b"batch     bytes", b"q")):
        while awaited not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, key)
    _, status = os.waitpid(pid, 0)
    assert os.WEXITSTATUS(status) == 0
    text = shown.decode()
    assert "steps/s*" in text and "█" in text
    assert ("pid" in text) == (width == 200)


def test_hvdlite_top_prints_the_recorder_of_a_process_as_json():
    """The job has one rank, which starts hvdlite-top for its own process."""
    code = """
import os, subprocess, sys, numpy, hvdlite as hvd
hvd.init()
for _ in range(3):
    hvd.numpy.allreduce(numpy.ones(5), name="x")
command = [sys.executable, "-m", "hvdlite.monitor.top", "--once", "--json", str(os.getpid())]
print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
hvd.shutdown()
left = subprocess.run(command, capture_output=True, text=True)
print(left.returncode, left.stderr)
"""
    line, _, after = alone(code).partition("\n")
    (one,) = memory.from_line(line)
    assert one.head["tensors"] == 3
    assert [op["name"] for op in one.ops] == ["allreduce.x"] * 3
    assert {op["phase"] for op in one.ops} == {"done"}
    assert after.strip().startswith("2 hvdlite-top: process")
    assert "has no flight recorder" in after


def test_hvdlite_top_shows_ranks_of_other_hosts(tmp_path):
    """A fake ssh runs the command on this host, so both hosts report the same rank."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\n"
        'while [ "$1" = -o ]; do shift 2; done\n'
        '[ "$1" = there ] || { printf "no such h\\366st\\n" >&2; exit 255; }\n'
        'shift; exec sh -c "$*"\n'
    )
    ssh.chmod(0o755)
    code = """
import os, subprocess, sys, hvdlite as hvd
hvd.init()
for hosts in ("there:2", "there, elsewhere"):
    command = [sys.executable, "-m", "hvdlite.monitor.top", "--once", "-H", hosts, str(os.getpid())]
    print(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
hvd.shutdown()
"""
    told, failed = alone(code, HVDLITE_SSH=str(ssh)).split("job ")[1:]
    assert "2 of 1 ranks" in told and "2 of 1 ranks" in failed
    assert "no such h" not in told and "elsewhere: no such h\ufffdst" in failed


def test_hvdlite_top_shows_that_a_host_no_longer_answers(tmp_path, monkeypatch):
    """Otherwise the host's last report would seem to be new."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho '[]'; exec sleep 60\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("HVDLITE_SSH", str(ssh))
    monkeypatch.setattr(watching, "_PATIENCE", 0.2)
    there = watching.There("far", "job", 0)
    there.wait(60)
    time.sleep(0.3)
    (note,) = top._notes([None, there])
    assert note.startswith("far: no answer for ")
    there.close()


@pytest.mark.parametrize("program, option", [(top, "--every"), (why, "--seconds")])
def test_hvdlite_top_and_why_refuse_wrong_hosts_and_options(program, option, monkeypatch, capsys):
    monkeypatch.setenv("HVDLITE_SSH", "/nowhere/ssh")
    monkeypatch.setattr(watching, "job_of", lambda which: "job")
    assert program.main(["-H", "far", *["--json"] * (program is top)]) == 2
    assert "far: /nowhere/ssh: No such file or directory" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        program.main([f"{option}=-1"])
    assert "'-1': expected a number of at least 0" in capsys.readouterr().err


def test_the_error_of_hvdlite_top_says_how_to_install_rich(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "rich", None)
    assert top.main([]) == 2
    assert "pip install rich" in capsys.readouterr().err


def test_a_snapshot_of_recorders_can_be_sent_as_text():
    one = snapshot(1, [op("a", "done", 1, 98)])
    assert memory.from_line(memory.to_line([one])) == [one]


def test_a_missing_folder_for_reports_is_created(tmp_path, monkeypatch):
    monkeypatch.setenv(report.FOLDER, str(tmp_path / "a b" / "reports"))
    report.create("job", "failure").close()


def test_a_report_of_one_rank_names_operations_in_progress():
    one = snapshot(0, [op("a", "moves", 3, 99.0, batch=2, agreed=99.1, started=99.2)])
    text = report.text("tensor 'a' has waited", [one])
    assert "under way: 'allreduce a' (4.0 kB, batch 2, moving)" in text
    assert "-1.0000   -0.9000   -0.8000         -  moves       2    4.0 kB  allreduce a" in text


def test_a_reporter_whose_thread_ends_late_closes_its_pipe(monkeypatch):
    monkeypatch.setattr(report, "PATIENCE", 0)  # do not wait for the thread
    pipes = []
    for _ in range(20):
        reporter = report.Reporter("job", [])
        pipes.append(os.readlink(f"/proc/self/fd/{reporter.bell}"))
        reporter.close()
        reporter._thread.join()
    links = (os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd"))
    assert not set(pipes) & {os.readlink(link) for link in links if os.path.lexists(link)}
