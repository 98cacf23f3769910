"""Jobs on this host, without emulated hosts."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest
from jobs import wait_until
from launching import SCRIPTS, TIMEOUT, WHERE, call, left_with, python, start

from hvdlite.machine import probe, processes
from hvdlite.monitor.memory import ENDED, state_of

pytestmark = pytest.mark.skipif(not probe.find_program("mpirun"), reason="there is no mpirun")

WORDS = ["a b", "it's", '"q"', "$HOME", "`x`", "", "*", "back\\slash", "new\nline", "-x", "é"]


TELLS = """
import os, sys, hvdlite as h; h.init()
given = map(os.environ.get, ["MINE", "B", "HVDLITE_KVSTORE_MODE"])
print(h.rank(), h.size(), os.getcwd(), *given, repr(sys.stdin.read()), ascii(sys.argv[1:]))
"""


def test_ranks_get_the_users_environment_and_lines_are_labeled(tmp_path):
    """Ranks get the folder and arguments, too, and an empty stdin."""
    env = {**os.environ, "MINE": "x\ny; z"}
    done = call("-n", 2, "--env", "B=1:2", *python(TELLS), *WORDS, cwd=tmp_path, env=env).passed()
    ends = f"y; z 1:2 mpi '' {ascii(WORDS)}"
    expected = [line for r in (0, 1) for line in (f"[{r}] {r} 2 {tmp_path} x", f"[{r}] {ends}")]
    assert sorted(done.out.splitlines()) == sorted(expected)


def test_the_users_own_sitecustomize_also_runs(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("print('customized')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert call("-n", 1, *python("print('runs')")).out.endswith("[0] customized\n[0] runs\n")


LISTENS = """
import os, hvdlite as h
h.init(); h.barrier()
if h.rank() == 0:
    names = {pid: open(f"/proc/{pid}/comm").read() for pid in family(os.getpid())}
    mpirun = "prterun\\n", "mpirun\\n"
    print(*sorted(listening(pid for pid, name in names.items() if name not in mpirun)))
h.barrier()
"""


@pytest.mark.parametrize("window", ["0", "1"])
@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_a_job_on_one_host_listens_only_on_the_loopback_interface(window, transport):
    """The daemon of Open MPI's mpirun is an exception."""
    helper = f"import sys; sys.path[:0] = {[str(SCRIPTS.parent), str(SCRIPTS.parents[1])]}\n"
    helper += "from launching import family, listening\n"
    options = ["--env", f"HVDLITE_WINDOW={window}", "--transport", transport, "-n", 2]
    done = call(*options, *python(helper + LISTENS)).passed()
    addresses, own = set(done.out.split()[1:]), "0100007F"  # 127.0.0.1
    assert own in addresses  # the address of hvdliterun
    assert addresses <= {own, "01000000".zfill(32)}, done.out  # ::1


def test_the_error_names_a_program_that_does_not_exist():
    done = call("-n", 2, "no-such-program")
    assert done.code == 127
    assert "cannot start 'no-such-program': No such file or directory" in done.err


def test_a_failed_job_starts_again_until_restarts_are_used_up(tmp_path):
    """A file stands for the job's checkpoint."""
    code = (
        "import os, signal, sys, hvdlite as h; h.init(); mine = f'{sys.argv[1]}/{h.rank()}'\n"
        "n = len(open(mine).read()) if os.path.exists(mine) else 0; open(mine, 'a').write('x')\n"
        "h.barrier(); print(n, flush=True)\n"
        "if n == 0 and h.rank() == n: sys.exit(2)\n"
        "if n == 1 and h.rank() == n: os.kill(os.getpid(), signal.SIGKILL)\n"
        "h.barrier()"
    )
    enough, too_few = tmp_path / "enough", tmp_path / "too few"
    for folder in (enough, too_few):
        folder.mkdir()
    logs = tmp_path / "logs"
    done = call("-n", 2, "--restarts", 2, "--output-filename", logs, *python(code), enough).passed()
    assert [(logs / f"rank.{i}" / "stdout").read_text() for i in range(2)] == 2 * ["0\n1\n2\n"]
    assert "rank 1 on" in done.err
    assert "the job starts again (1 restarts left)" in done.err
    failed = call("-n", 2, "--restarts", 1, *python(code), too_few)
    assert failed.code != 0
    assert (too_few / "0").read_text() == "xx"


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [
        ("raise", 1, "ValueError: no such thing"),
        ("compute", 1, "ValueError: no such thing"),
        ("exit", 7, "line 29"),
        ("kill", 137, "line 29"),
    ],
)
def test_a_rank_that_fails_ends_the_job_and_the_report_names_it(how, code, says):
    done = call("-n", 3, sys.executable, SCRIPTS / "fails.py", how)
    assert done.code == code
    report = done.err[done.err.index("hvdliterun: rank 1 on ") :].splitlines()
    assert f"exit code {code}" in report[0]
    assert len(report) == 22
    assert report[-2].strip().startswith(says) or says in "\n".join(report)
    assert report[-1] == "hvdliterun: the other 2 were ended"


ENDLESS = """
import os, signal, sys, time, hvdlite as hvd, numpy as np
hvd.init()
hvd.numpy.allreduce(np.ones(1))
{}
while True:
    hvd.numpy.allreduce(np.ones(1))
    time.sleep(0.01)
"""
AGENT = "if hvd.rank(): print('agent', os.environ['HVDLITE_WATCHED'].split('/')[2], flush=True)"


def start_endless(what, *options, **env):
    """Start hvdliterun with two ranks that run `what` and then allreduce forever."""
    return start("-n", 2, *options, *python(ENDLESS.format(what)), env={**os.environ, **env})


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name
)
def test_a_killed_mpirun_fails_the_job(number):
    """No rank fails by itself, but mpirun ends the ranks, so the job has failed."""
    ask = "print('agent', os.getppid(), flush=True)"
    launcher = start_endless(ask)
    os.kill(processes.parent(launcher.stdout.readline().split()[-1]), number)
    _, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode != 0, err
    assert "before its ranks had finished" in err


def test_no_rank_is_blamed_if_mpirun_kills_all_agents():
    """mpirun kills agents one second after SIGTERM, before agents on a busy machine can report."""
    ask = "print('agent', os.getppid(), flush=True)"
    launcher = start_endless(ask)
    agents = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
    launcher.send_signal(signal.SIGSTOP)  # the continued launcher finds two ended agents
    for agent in agents:
        with contextlib.suppress(ProcessLookupError):  # mpirun has killed the agent
            os.kill(agent, signal.SIGKILL)
    assert wait_until(lambda: all(state_of(agent) == ENDED for agent in agents), TIMEOUT)
    launcher.send_signal(signal.SIGCONT)
    _, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode != 0, err
    assert "before its ranks had finished" in err


@pytest.mark.parametrize("shell", [(), ("sh", "-c", '"$@"; exit $?', "sh")], ids=["", "a shell"])
def test_a_killed_agent_ends_the_job_and_its_rank(shell):
    """The rank, and a shell between agent and rank, end though their agent can't end them."""
    marker = f"hvdlite-test-{uuid.uuid4().hex}"
    for _ in range(3):  # on a busy machine mpirun may kill both agents before one can report
        launcher = start_endless(AGENT, *shell, MARKER=marker)
        os.kill(int(launcher.stdout.readline().split()[-1]), signal.SIGKILL)
        _, err = launcher.communicate(timeout=TIMEOUT)
        assert (launcher.returncode, left_with(marker)) == (137, []), err
        if named := re.search("hvdliterun: rank 1 on .* ended without a report ", err):
            break
    assert named, err


@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_the_report_names_a_rank_whose_agent_got_a_signal(transport):
    launcher = start_endless(AGENT, "--transport", transport)
    os.kill(int(launcher.stdout.readline().split()[-1]), signal.SIGTERM)
    _, err = launcher.communicate(timeout=TIMEOUT)
    assert launcher.returncode == 143, err
    named = "hvdliterun: rank 1 on .* was ended by SIGTERM, which another process sent to its agent"
    assert re.search(named, err), err


@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_the_report_names_a_rank_that_exits_with_a_text_and_ends_last(transport):
    """Exit functions delay the end of the rank; the report must still blame this rank."""
    last = "import atexit, time; atexit.register(lambda: time.sleep(60 * is_rank_1))\n"
    text = "is_rank_1 = hvd.rank() == 1\nif is_rank_1: sys.exit('fatal: no data')"
    options = ["--transport", transport, "-n", 3]
    done = call(*options, *python(last + ENDLESS.format(text)))
    assert done.code == 1
    assert re.search("rank 1 on .* failed with exit code 1 .*\n    fatal: no data", done.err)


FREEZES = "if hvd.rank() == {}: print('stops', flush=True); os.kill(os.getpid(), signal.SIGSTOP)"


@pytest.mark.parametrize(
    "rank, limit",
    [
        (0, ["--env", "HVDLITE_DATA_TIMEOUT_SECONDS=4"]),
        (2, ["--env", "HVDLITE_DATA_TIMEOUT_SECONDS=4"]),
        # rank 0 applies the limit of this option, so the stopped rank must be another rank
        (1, ["--stall-check-shutdown-time-seconds", 4]),
    ],
)
def test_the_launcher_blames_and_ends_a_frozen_rank(rank, limit):
    """The launcher needs SIGKILL. The ranks that notice the stopped rank are not blamed."""
    done = call("-n", 3, *limit, *python(ENDLESS.format(FREEZES.format(rank))))
    assert done.code == 1, done.err
    assert f"hvdliterun: rank {rank} on " in done.err
    assert "stood still, and rank " in done.err
    assert done.err.rstrip().endswith("    stops")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_exits_with_code_0_without_shutdown_fails_the_job(rank):
    done = call("-n", 2, *python(ENDLESS.format(f"if hvd.rank() == {rank}: os._exit(0)")))
    assert done.code == 1, done.err
    assert f"hvdliterun: rank {rank} on " in done.err
    assert "ended with exit code 0 before it had left the job" in done.err


def test_a_job_fails_if_all_ranks_exit_with_code_0_without_shutdown():
    code = "import hvdlite as hvd, os; hvd.init(); os._exit(0)"
    assert call("-n", 2, *python(code)).code != 0


def test_a_rank_with_more_than_1024_open_files_works():
    """select() takes no descriptor above 1023, so the watching thread must not use it."""
    code = f"""
import resource as r
r.setrlimit(r.RLIMIT_NOFILE, (4096, r.getrlimit(r.RLIMIT_NOFILE)[1]))
files = [open("/dev/null") for _ in range(1024)]
{WHERE}; import time; time.sleep(0.2)
"""
    done = call("-n", 2, *python(code))
    assert (done.code, done.err) == (0, "")


def test_a_rank_that_exits_after_shutdown_has_succeeded():
    code = "import hvdlite as hvd, sys; hvd.init(); hvd.shutdown(); hvd.init(); sys.exit(0)"
    call("-n", 2, *python(code)).passed()


def test_files_with_names_similar_to_hvdlites_are_not_deleted():
    """Files of other jobs are kept, too: jobs in other containers may share /dev/shm."""
    folder = Path("/dev/shm")
    names = ["hvdlite_my_data.rec", "hvdlite-1-2.3", "hvdlite-0123456789abcdef-1-2.3"]
    names += [f"sm_segment.{os.uname().nodename}.0.deadbeef.0", "hvdlite-my-data", "mpich_shm_x"]
    code = "import os, sys; [open('/dev/shm/' + n, 'w').close() for n in sys.argv[1:]]; os._exit(3)"
    try:
        done = call("-n", 2, *python(code), *names)
        assert done.code == 3, done.err
        assert [name for name in names if not (folder / name).exists()] == []
    finally:
        for name in names:
            (folder / name).unlink()


KEEPS = """
import os, time, hvdlite as hvd, numpy as np
hvd.init()
files = [line.split()[-1] for line in open("/proc/self/maps") if "/dev/shm/" in line]
print(os.environ["HVDLITE_JOB"], any("sm_segment" in f for f in files))
own = f"/dev/shm/hvdlite-{os.environ['HVDLITE_JOB']}/of_rank_{hvd.rank()}"
hvd.numpy.allreduce(np.ones(1))
"""


@pytest.mark.parametrize("how", ["os.kill(os.getpid(), 9)", "os._exit(3)", "1 / 0", "pass"])
def test_nothing_of_the_job_is_left_in_shared_memory(how):
    """The launcher also removes segments of Open MPI that a killed rank can't remove."""
    fails = f"open(own, 'w').close()\ntime.sleep(0.3)\nif hvd.rank(): {how}"
    done = call("-n", 2, *python(KEEPS + (fails if how != "pass" else "")))
    assert (done.code == 0) == (how == "pass"), done.err
    job = done.out.split()[1]
    assert len(job) == 16
    assert list(Path("/dev/shm").glob(f"*{job}*")) == []


def test_the_output_of_a_failed_mpirun_is_shown():
    done = call("-n", 2, "--mpi-args=--no-such-option", "true")
    assert done.code != 0
    assert "no-such-option" in done.err
    # Open MPI 5 gives exit code 213 instead of a signal
    assert f"mpirun ended (exit code {done.code})" in done.err


def test_agents_report_no_failure_to_the_backend(tmp_path):
    """Open MPI 5's mpirun can hang when ranks of several hosts fail."""
    wrapper, code_of = tmp_path / "mpirun", tmp_path / "code"
    wrapper.write_text(f'#!/bin/sh\n{probe.find_program("mpirun")} "$@"\necho $? > {code_of}\n')
    wrapper.chmod(0o755)
    env = {**os.environ, "HVDLITE_MPIRUN": str(wrapper)}
    done = call("-n", 2, *python("import sys; sys.exit(3)"), env=env)
    assert done.code == 3
    assert code_of.read_text() == "0\n"


def test_waiting_for_ranks_that_do_not_start_times_out(tmp_path):
    """A fake mpirun hangs, as mpirun does with a firewall between the hosts."""
    fake = tmp_path / "mpirun"
    fake.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "mpirun (Open MPI) 5.0.0" && exit\n')
    fake.write_text(fake.read_text() + "exec sleep 60\n")
    fake.chmod(0o755)
    env = {**os.environ, "HVDLITE_MPIRUN": str(fake)}
    done = call("-n", 1000, "--start-timeout", 0.5, "true", env=env)
    assert done.code == 2
    assert "only 0 of 1000 processes have started within 0.5 s" in done.err
    cores = len(os.sched_getaffinity(0))
    assert f"WARNING: 1000 ranks share the {cores} cores of this host: the start" in done.err


def test_the_launcher_raises_a_low_limit_of_open_files_or_gives_an_error():
    """With only 24 open files, mpirun and hvdliterun fail in unclear ways."""
    few = ["sh", "-c", 'ulimit -S -n 24; exec "$@"', "sh"]
    assert call("-n", 2, "true", prefix=few).code == 0
    few[2] = few[2].replace("-S ", "")
    done = call("-n", 2, "true", prefix=few)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("hvdliterun: 2 ranks on this host need about 34 open files, and the")
    assert "limit is 24: raise it (`ulimit -n 34`)" in done.err


def test_arguments_may_be_longer_than_one_command_line_word():
    """The launcher must not pass all arguments to an agent as one word: execve() limits words."""
    many = [f"/a/folder/of/records/part-{i:05d}.rec" for i in range(8000)]
    code = "import sys; print(len(sys.argv), len(''.join(sys.argv[1:])))"
    done = call("--transport", "tcp", "-n", 1, *python(code), *many).passed()
    assert done.out == f"[0] 8001 {len(''.join(many))}\n"


def test_without_mpi_no_mpirun_is_used():
    code = (
        "import sys; sys.modules['mpi4py'] = None; import hvdlite as h; h.init(); print(h.size())"
    )
    env = {**os.environ, "HVDLITE_MPIRUN": "/nowhere"}
    done = call("--transport", "tcp", "-n", 2, *python(code), env=env)
    assert (done.code, sorted(done.out.splitlines())) == (0, ["[0] 2", "[1] 2"]), done.err


def test_a_printed_dry_run_command_works():
    line = call("-n", 2, "--dry-run", "echo", "a  b").out.splitlines()[-1]
    done = subprocess.run(line, shell=True, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.stdout.splitlines() == ["a  b", "a  b"]
