"""``hvdlite-bench`` on real ranks, and benchmarks/ with hvdlite, with MPI and with one process."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import cluster
import pytest
from jobs import ROOT, assert_passed, mpirun

from benchmarks import cores, harness, hosts, libraries, mpis, plan, report, run, small
from benchmarks.results import Results
from hvdlite.bench import cases
from hvdlite.bench.cases import KINDS

LIMIT = 200  # seconds; generous, because the machine may be busy
BENCH = ["-m", "hvdlite", "bench", "--seconds=0.01", "--sizes=4K"]


@pytest.mark.parametrize("ranks", [1, 3])
def test_hvdlite_bench_runs_every_collective_in_every_kind_of_memory(ranks, tmp_path):
    options = [
        "--kinds=all",
        "--models=lenet",
        "--memory=private,trainer,zero-copy,sharded",
        "--idle=0.2",
    ]
    # on several ranks no training steps, which take long: the tests of benchmarks.worker have some
    options += ["--no-tiny" if ranks == 1 else "--no-step"]
    files = [f"--json={tmp_path}/rows.json", f"--csv={tmp_path}/rows.csv"]
    job = assert_passed(mpirun(ranks, *BENCH, *options, *files, timeout=LIMIT))
    kept = json.loads((tmp_path / "rows.json").read_text())
    measured = {(row["library"], row["kind"], row["memory"], row["label"]) for row in kept["rows"]}
    for library in ("mxnet", "numpy"):
        for kind in KINDS:
            assert (library, kind, "private", "4096") in measured
    for memory in ("trainer", "sharded"):
        assert ("mxnet", "update", memory, "lenet") in measured
    for memory in ("trainer", "zero-copy"):
        assert ("mxnet", "allreduce", memory, "lenet") in measured
        assert (("mxnet", "step", memory, "lenet") in measured) == (ranks == 1)
    reduced = [row for row in kept["rows"] if row["kind"] == "allreduce" and row["arrays"] == 1]
    ways = {(row["memory"], row["algorithm"], row["shared"]) for row in reduced}
    # NumPy's blocking calls take the fast path, except when a rank is late
    ways -= {("private", "fast path", 0)}
    assert ways == (
        {
            ("private", "window allreduce", 0),
            ("trainer", "window allreduce", 0),
            ("zero-copy", "direct allreduce", 1),
        }
        if ranks > 1
        else {("private", "", 0), ("trainer", "", 0), ("zero-copy", "", 1)}
    )
    assert len(kept["idle"]) == ranks and kept["bandwidth"] > 10**8
    with open(tmp_path / "rows.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(kept["rows"])
    assert "p50 ms" in job.output and "peak memory by rank" in job.output


def test_hvdlite_bench_reports_zero_copy_cases_without_shared_memory(tmp_path):
    command = [*BENCH, "--models=", "--no-tiny", "--no-step", "--idle=0", "--apis=mxnet"]
    job = assert_passed(
        mpirun(
            2, *command, f"--json={tmp_path}/rows.json", env={"HVDLITE_WINDOW": "0"}, timeout=LIMIT
        )
    )
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [(row["memory"], row["algorithm"], row["shared"]) for row in rows] == [
        ("private", "recursive doubling", 0),
        ("zero-copy", "recursive doubling", 0),
    ]
    assert "zero-copy, not shared" in job.output


def worker(ranks: int, library: str, tmp_path, suite: str, idle: float = 0) -> dict:
    out = tmp_path / f"{library}.json"
    command = ["-m", "benchmarks.worker", "--library", library, "--suite", suite]
    command += ["--seconds=0.01", f"--idle={idle}", f"--out={out}"]
    assert_passed(mpirun(ranks, *command, timeout=LIMIT))
    return json.loads(out.read_text())


@pytest.mark.parametrize(
    "processes, library, cases_it_has",
    [
        (2, "hvdlite", {"allreduce.private", "allreduce.trainer", "allreduce.zero-copy",
                        "step.trainer", "step.zero-copy"}),
        (2, "mpi", {"allreduce.private"}),
        (2, "ucc", {"allreduce.private"}),
        (2, "alone", {"step.trainer"}),
        (5, "ps", {"allreduce.private", "step.trainer"}),
    ],
)  # fmt: skip
def test_the_benchmark_runs_the_cases_of_each_library(processes, library, cases_it_has, tmp_path):
    if not libraries.BUILT.get(library, ROOT).exists():
        pytest.skip("`make small-peers` has not built it")
    kept = worker(processes, library, tmp_path, "small", idle=0.1)
    assert kept["ranks"] == 2
    assert {row["name"].rpartition(".float32")[0] for row in kept["rows"]} == cases_it_has
    by_turns = {row["name"] for row in kept["rows"] if row.get("speed_kept", 0) > 0}
    steps = {row["name"] for row in kept["rows"] if row["kind"] == "step"}
    assert by_turns == (set() if library == "alone" else steps)
    assert len(kept["idle"]) == 2
    assert kept["versions"]["Open MPI"]
    assert ("bandwidth" in kept) == (library == "alone")


def test_the_benchmark_returns_cause_and_output_of_a_failed_command(tmp_path):
    crash = [sys.executable, "-c", "raise SystemExit('no such library')"]
    assert "exit status 1\nno such library" in run.execute(crash, {}, 120)
    hang = [sys.executable, "-c", "import time; print('so far', flush=True); time.sleep(60)"]
    assert run.execute(hang, {}, 6).startswith("not done after 6 s\nso far")


def test_the_benchmark_leaves_out_a_system_that_is_not_built(monkeypatch):
    monkeypatch.setattr(plan.Contestant, "python", Path(sys.executable))
    monkeypatch.setitem(libraries.BUILT, "ucc", ROOT / "build" / "absent.so")
    kept = run.run("speed-2", plan.UCC, 0.01)
    reason = "build/absent.so is missing: run `make small-peers`"
    assert kept == {"UCC": {"rows": [], "error": reason}}
    monkeypatch.setitem(mpis.HOMES, "MPICH", ROOT / ".venv-absent")
    mpich = next(each for each in plan.OTHER_MPIS if each.name == "MPICH")
    assert mpich.left_out() == ".venv-absent is missing: run `make small-peers`"


@pytest.mark.parametrize(
    "log, reasons",
    [
        ("selecting         han, priority 100, Enabled\nselecting         xhc, priority 100,", []),
        (
            "coll:han:comm_query (0/MPI_COMM_WORLD): comm has only local processes; disqualifying",
            [
                "Open MPI refuses han: comm has only local processes",
                "this Open MPI has no component xhc",
            ],
        ),
    ],
)
def test_the_benchmark_leaves_out_a_component_that_open_mpi_refuses(log, reasons):
    """Otherwise the benchmark would show Open MPI's default under the component's name."""
    assert list(mpis.refused(log).values()) == reasons


def made_up(seconds: float) -> dict:
    """Return the results that a worker would write if every case took `seconds`."""
    kept = {"step": {"speed_kept": 0.93, "alone": 2.2e-3}}
    rows = [{"name": c.name, "p50": seconds, **kept.get(c.kind, {})} for c in plan.speed()]
    return {"rows": rows, "machine": {"cores": "2", "processor": "P"}, "versions": {"MPI": "MPI"}}


def test_the_benchmark_report_shows_medians_and_ratios_within_rounds(tmp_path):
    times = [(1e-3, 9e-3), (2e-3, 8e-3), (3e-3, 6e-3)]
    rounds = [{"hvdlite": made_up(ours), "Horovod": made_up(theirs)} for ours, theirs in times]
    for kept in rounds:
        kept["UCC"] = made_up(1e-3)
    rounds[0]["Gloo"] = {"rows": [], "error": "exit status 1\nTraceback"}
    results = Results({"speed-2": rounds})
    case = report.ROWS[0].ours
    assert results.value(plan.HVDLITE, 2, case) == 2e-3
    assert results.ratios(plan.HVDLITE, case, plan.HOROVOD, case, 2) == pytest.approx([9, 4, 2])
    assert results.ratios(plan.HVDLITE, case, plan.MPI, case, 2) == []
    assert results.rounds() == 3

    page = tmp_path / "benchmarks.md"
    shutil.copy(ROOT / "docs" / "benchmarks.md", page)
    harness.put(page, report.texts(results))
    text = page.read_text()
    assert "| work | hvdlite | Horovod | UCC | Horovod, tuned / hvdlite | fastest other /" in text
    assert "| 4 KiB | 2 | 8 | 1 | – | UCC **0.50x** [**0.33x**, 1.0x] |" in text
    assert "| hvdlite | 2 | 2.2 | 93 % [93 %, 93 %] | – | – | – |" in text
    assert "Gloo, suite speed on 2 ranks: 1 jobs failed: exit status 1" in text
    assert "`MPI4PY_LIBMPI=.venv-intel/lib/libmpi.so.12`" in text and str(ROOT) not in text


def test_benchmark_rounds_alternate_the_order_of_systems(tmp_path, monkeypatch):
    runs = []

    def run(work, contestant):
        runs.append(contestant)
        return {contestant: len(runs)}

    monkeypatch.setattr(harness, "BUILD", tmp_path / "build")
    both = ["ours", "theirs"]
    harness.Kept("study").add(["work"], both, 2, run)
    kept = harness.Kept("study").add(["work"], both, 1, run)
    assert runs == both + both[::-1] + both
    first, second, third = kept["work"]
    assert first == {"ours": 1, "theirs": 2} and second == {"theirs": 3, "ours": 4}
    assert third == {"ours": 5, "theirs": 6}


def test_the_benchmark_writes_its_table_between_the_marks_of_a_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- table -->\nold\n<!-- end -->\nb\n")
    harness.show("new\\1\n", page)
    assert page.read_text() == "a\n<!-- table -->\nnew\\1\n<!-- end -->\nb\n"
    page.write_text("no marks")
    with pytest.raises(ValueError, match="page.md: expected .* once, got 0"):
        harness.show("new", page)


def test_every_case_of_the_benchmark_report_is_measured():
    names = {case.name for case in plan.speed()}
    assert {row.ours for row in report.ROWS} | {row.theirs for row in report.ROWS} <= names
    assert {case for _, _, case in report.STEPS} <= names


def rows_of_page(module: str, arguments: list, folder) -> list:
    """Run a benchmark between hosts; return the rows that it writes to a page, titles first."""
    lacks = cluster.missing()
    if lacks:
        pytest.skip(lacks)
    page = folder / "page.md"
    page.write_text("<!-- table -->\n<!-- end -->\n")
    command = [sys.executable, "-m", f"benchmarks.{module}", "--rate=1gbit", f"--page={page}"]
    done = subprocess.run([*command, *arguments], cwd=ROOT, timeout=LIMIT)
    assert done.returncode == 0
    # otherwise a later run would write these rows to docs/hosts.md
    (harness.BUILD / "hosts-1gbit.json").unlink()
    return [line for line in page.read_text().splitlines() if line.startswith("| ")]


def test_the_benchmark_between_hosts_writes_four_rows_into_docs_hosts_md(tmp_path):
    """Two hosts with two ranks have four rows: times, times with a late rank, bytes, CPU."""
    arguments = ["--layout=2x2", "--bytes=40000", "--only=hvdlite", "--only=tcp", "--rounds=1"]
    rows = [row.split(" | ") for row in rows_of_page("hosts", arguments, tmp_path) if "2x2" in row]
    assert [row[1] for row in rows] == [
        "40,000",
        "4,096, a rank 50 ms late",
        "bytes sent by a host, over the least",
        "CPU seconds a GB",
    ]
    ours, tcp, horovod, mpi = zip(*(row[2:6] for row in rows))
    assert all(float(cell.split()[0]) > 0 for cell in [*ours, *tcp, mpi[0]]) and not any(horovod)


def test_the_benchmark_table_of_small_arrays_names_the_fastest_other_system():
    """A row compares UCC with hvdlite's calls from C. In brackets: the least and greatest ratio."""

    def of_round(ours, mpi, gloo, ucc):
        times = {"hvdlite": ours, small.IN_C: 1, "Open MPI": mpi, "Gloo": gloo, small.UCC: ucc}
        return {name: {"4": [us, us]} for name, us in times.items()}

    rounds = [of_round(2, 3, 9, 0.5), of_round(2, 8, 4, 0.4), of_round(2, 1, 5, 2)]
    *_, python, c = small.table(rounds, "2 ranks", {4: "4 B"}).splitlines()
    assert python.endswith("from Python | Open MPI 1.50 [0.50, 4.00] |")
    assert c.endswith("from C | UCC **0.50** [0.40, 2.00] |")
    alone = small.table([{"hvdlite": {"4": [2, 2]}}], "2 ranks", {4: "4 B"})
    assert [line[-3:] for line in alone.splitlines()[-2:]] == ["– |"] * 2


def test_the_benchmark_of_cores_keeps_its_time_limit(monkeypatch):
    """Each job may use the time that is left; the result names each system that did not run."""
    clock, limits, saved = [100.0], [], []

    def run_job(layout, contestant, limit):
        limits.append((layout, contestant, limit))
        hangs = contestant == "Open MPI"
        clock[0] += limit if hangs else 20
        sizes = [4] if hangs else cores.TITLES
        return {contestant: {str(size): [1, 1] for size in sizes}}, "not done" if hangs else None

    monkeypatch.setattr(cores, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    jobs = [*[("2x8", name) for name in ("hvdlite", "MPICH", "Open MPI")], ("4x4", "hvdlite")]
    absent = {"MPICH": "absent", "DeepSpeed": "not compiled"}
    found = cores.measured(jobs, 160.0, absent, lambda kept: saved.append(len(kept)), run_job)
    assert limits == [("2x8", "hvdlite", 60), ("2x8", "Open MPI", 40)] and len(saved) == 4
    assert list(found["layouts"]) == ["2x8"]
    late = "no time was left"
    assert found["not run"] == {
        "2x8": {"DeepSpeed": "not compiled", "MPICH": "absent", "Open MPI": "not done"},
        "4x4": {"hvdlite": late, "DeepSpeed": "not compiled", "Gloo": late},
    }
    text = cores.text_of({"machine": "M", **found})
    assert "\n* DeepSpeed, 2x8, 4x4: not compiled\n" in text
    assert "\n| Open MPI | 1 (1) | – | – | – | – | – |\n" in text


def test_the_benchmark_of_cores_measures_teams_last():
    jobs = cores.jobs_of(cores.layouts_of(16))
    assert list(dict.fromkeys(layout for layout, _ in jobs)) == ["2x8", "16x1", "4x4", "8x2"]
    assert jobs[0] == ("2x8", "hvdlite") and jobs[-1] == ("16x1", f"{cores.TEAMS}8")
    assert {"Intel MPI", "MPICH", "Open MPI, XHC", small.UCC} <= {name for _, name in jobs}


def test_the_benchmark_ends_ranks_that_take_too_long():
    hang = [sys.executable, "-c", "import time; time.sleep(60)"]
    with pytest.raises(SystemExit, match="cores hvdlite: not done after 0 s"):
        list(harness.results(hang, "cores", ["hvdlite"], 0.3))


def calls_of(*seconds, sent=2_000_000):
    return [{"seconds": each, "sent": sent, "busy": 0.1} for each in seconds]


def test_the_benchmark_table_of_hosts_shows_medians_and_ratios():
    bound = 1_500_000 / harness.bytes_a_second("200mbit")
    runs = [
        {"hvdlite": {"sizes": {"1000000": calls_of(bound, 3 * bound)}, "late": [0.0005]}},
        {"hvdlite": {"sizes": {"1000000": calls_of(2 * bound)}, "late": [0.0007]}},
        {"Horovod": {"sizes": {"1000000": calls_of(4 * bound, sent=3_000_000)}, "late": [0.2]}},
    ]
    kept = {"200mbit": {"4x1": runs}}
    text = hosts.table(kept, [1_000_000])
    assert "| 4x1 | 1,000,000 | 126 (2.00) |  | 251 (4.00) |  |  |" in text
    assert "| 4x1 | 4,096, a rank 50 ms late | 0.60 |  | 200 |  |  |" in text
    assert "| 4x1 | bytes sent by a host, over the least | 1.33 |  | 2.00 |  |  |" in text
    assert "| 4x1 | CPU seconds a GB | 25.0 |  | 25.0 |  |  |" in text


def test_the_benchmark_tables_of_updates_show_time_and_speedup():
    """ShardedTrainer takes 2 ms, other trainers take 8 ms; the memory bandwidth is 1 GB/s."""
    found = {}
    for suite, updates in plan.UPDATES.items():
        for contestant in plan.UPDATING:
            rows = [
                {"name": cases.update(name, memory, optimizer).name, "p50": seconds}
                for name, optimizer in updates
                for memory, seconds in (("trainer", 8e-3), ("sharded", 2e-3))
            ]
            kept = {"rows": rows if contestant is plan.HVDLITE else rows[::2], "bandwidth": 10**9}
            found.setdefault(f"{suite}-2", [{}])[0][contestant.name] = kept
    case = cases.update("resnet50", "sharded", "momentum")
    row = {"name": case.name, "held": 6 * case.nbytes}
    found["held_sharded-4"] = [{"hvdlite": {"rows": [row]}}]
    text = report.updates(Results(found))
    assert "| ResNet-50, Adam | 2 | 8 (4.0x) | 8 (4.0x) | 8 (4.0x) |" in text
    nbytes = cases.update("bert-base", "sharded", "adam").nbytes
    assert f"| {1e3 * 8 * nbytes / 10**9:.0f} | 2 | " in text
    assert "| `ShardedTrainer` | – | – | 6.0 S | – |" in text
