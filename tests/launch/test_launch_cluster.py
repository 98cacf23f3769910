"""Jobs on four emulated hosts over ssh: jobs that succeed, and how soon jobs that fail end.

``KILLS=60 pytest tests/launch/test_launch_cluster.py -s -k random`` kills 60 ranks of elastic jobs
and prints how long the other ranks needed to go on; ``SEED`` selects other moments.
"""

import os
import random
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest
from jobs import kill_many, kills_wanted
from launching import (
    HVDLITERUN,
    SCRIPTS,
    TIMEOUT,
    assert_clean,
    elastic,
    ends_of,
    interrupt,
    python,
    start,
    told,
)  # fmt: skip
from versions import MXNET2

from hvdlite.launch import mpirun
from hvdlite.machine import probe

KILLS = kills_wanted(2)
WHERE = "import os, hvdlite as h; h.init(); print(os.uname().nodename, h.rank(), h.local_rank())"


def on_host(cluster, host, command):
    cluster.run(["sh", "-c", command], host, check=True, timeout=TIMEOUT)


@pytest.fixture
def package_on_h2(cluster):
    """Yield a function that puts a package into a folder of PYTHONPATH, on host h2 only."""
    folder = cluster.disk / "modules"

    def put(package, file, text):
        path = folder / package
        quoted = shlex.quote(text)
        init = f"touch {path}/__init__.py"
        on_host(cluster, "h2", f"mkdir -p {path} && {init} && echo {quoted} > {path}/{file}")
        return {"PYTHONPATH": str(folder)}

    yield put
    on_host(cluster, "h2", f"rm -rf {folder}")


def test_ranks_fill_the_slots_of_a_host_list(on_cluster):
    done = on_cluster("-np", 3, "-H", "h1:2,h3:2", "--network-interfaces", "eth0", *python(WHERE))
    assert sorted(done.out.splitlines()) == ["[0] h1 0 0", "[1] h1 1 1", "[2] h3 2 0"]


def test_a_setting_that_differs_between_ranks_does_not_end_the_job(on_cluster):
    code = """if True:
        import os, numpy as np, hvdlite as hvd
        os.environ["HVDLITE_DETERMINISTIC"] = os.environ["OMPI_COMM_WORLD_RANK"]
        hvd.init()
        for _ in range(20):
            hvd.numpy.allreduce(np.ones(1), name="x")
    """
    done = on_cluster("-n", 2, "-H", "h0:1,h1:1", *python(code))
    assert done.code == 0, done.err


@pytest.mark.skipif(MXNET2, reason="MXNet 2's optimizers compute other bits")
def test_optimizer_states_are_divided_among_hosts(on_cluster):
    """One host has two ranks, the other host has one rank."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    tests = "tests/parallel/test_sharded_stripes.py"
    root = SCRIPTS.parent.parent.parent
    done = on_cluster("-n", 3, "-H", "h0:2,h1:1", *command, tests, cwd=root).passed()
    assert "[100%]" in done.out


@pytest.mark.skipif(not shutil.which("rsync"), reason="rsync is not installed")
def test_sync_dst_dir_copies_the_current_folder_to_each_host(cluster, on_cluster):
    target = cluster.disk / "a copy"
    code = "import os; print(os.getcwd(), os.path.exists('fails.py'))"
    line = ["-n", 4, "-H", cluster.hostfile, "--launcher", "ssh", "--sync-dst-dir", target]
    done = on_cluster(*line, "--mode", "mpi", *python(code), cwd=SCRIPTS).passed()
    assert sorted(done.out.splitlines()) == [f"[{i}] {target} True" for i in range(4)]


def test_plain_mpirun_starts_a_job_without_hvdliterun(cluster):
    program = Path(sys.executable).with_name("mpirun")
    version = probe.mpi_version() or ""
    if not program.exists() or not version.startswith("Open MPI 5"):
        pytest.skip("mpirun's options depend on the MPI: this test has the options of Open MPI 5")
    agent = ["--prtemca", "plm_ssh_agent", cluster.ssh]
    line = [program, "--allow-run-as-root", *agent, "-H", "h0,h1,h2,h3", *python(WHERE)]
    # With the Makefile's settings, which allow more ranks than cores, mpirun would use one host.
    env = {name: value for name, value in cluster.environment().items() if "_MCA_" not in name}
    options = {"capture_output": True, "text": True, "timeout": TIMEOUT, "env": env}
    done = cluster.run(list(map(str, line)), **options)
    assert sorted(done.stdout.split()[::3]) == ["h0", "h1", "h2", "h3"], done.stderr


def test_hvdliterun_check_prints_a_row_for_each_host(on_cluster):
    done = on_cluster("--check", "-H", "h0,h1,nohost")
    head, h0, h1, nohost, trouble = done.out.splitlines()
    assert h1.split()[:2] == ["h1", "yes"]
    assert "eth0=10.77.0.2" in h1
    assert nohost.split()[:3] == ["nohost", "NO", "-"]
    assert trouble.startswith("nohost cannot be reached by ssh:")
    assert done.code == 1


def test_hvdliterun_check_runs_an_allreduce_of_one_rank_on_each_host(on_cluster):
    done = on_cluster("--check", "-H", "h0,h1:5").passed()
    assert done.out.splitlines()[-1].startswith("2 ranks compute the right sum, transport mpi")


def sentences(done):
    assert done.code == 2
    assert done.out == ""
    return told(done.err)


@pytest.mark.parametrize("host", ["nohost", "10.77.0.99"])
def test_the_error_names_a_host_that_cannot_be_reached(on_cluster, host):
    (line,) = sentences(on_cluster("-H", f"h0,{host}", "true"))
    assert line.startswith(f"hvdliterun: {host} cannot be reached by ssh: ")


def test_the_error_names_a_host_with_another_mxnet(cluster, on_cluster, package_on_h2):
    env = package_on_h2("mxnet", "libinfo.py", "__version__ = '1.8.0'")
    (line,) = sentences(on_cluster("-H", cluster.hostfile, "true", env=env))
    assert line.startswith("hvdliterun: h2 has MXNet 1.8.0, but this host has ")


def test_the_error_names_a_host_with_another_hvdlite(cluster, on_cluster, package_on_h2):
    env = package_on_h2("hvdlite", "__init__.py", "__version__ = '0.0.9'")
    (line,) = sentences(on_cluster("-H", cluster.hostfile, "true", env=env, cwd="/"))
    assert line.startswith("hvdliterun: h2 has hvdlite 0.0.9, but this host has hvdlite ")


def test_launcher_mpi_also_refuses_hosts_with_different_versions(
    cluster, on_cluster, package_on_h2
):
    env = package_on_h2("mxnet", "libinfo.py", "__version__ = '1.8.0'")
    options, more = mpirun.find()[1].ssh(shlex.split(cluster.ssh))
    line = ["--launcher", "mpi", "--mpi-args", shlex.join(options), "-H", cluster.hostfile, "true"]
    assert "h2 has MXNet 1.8.0" in sentences(on_cluster(*line, env={**env, **more}))[-1]


def test_errors_name_hosts_without_python_or_without_hvdlite(cluster, on_cluster):
    """h1 has no Python at the launcher's path; h2 has a Python without packages."""
    fake = cluster.disk / "python"
    on_host(cluster, "h0", f"ln -s {sys.executable} {fake}")
    text = f'#!/bin/sh\nexec {sys.executable} -S "$@"\n'
    on_host(cluster, "h2", f"printf %s {shlex.quote(text)} > {fake}; chmod +x {fake}")
    code = "import sys; from hvdlite.launch import cli; sys.executable = sys.argv.pop(1)"
    starter = [sys.executable, "-c", f"{code}; sys.exit(cli.main())", str(fake)]
    line = [*starter, "-H", "h0,h1,h2", "true"]
    # The folder of the fake Python has no mpirun.
    path = os.pathsep.join([str(Path(sys.executable).parent), cluster.environment()["PATH"]])
    env = {**cluster.environment(), "PATH": path}
    done = cluster.run(line, env=env, capture_output=True, text=True, timeout=TIMEOUT, cwd="/")
    for host in ("h0", "h1", "h2"):
        on_host(cluster, host, f"rm -f {fake}")
    assert done.stderr.count("\n") == 2, done.stderr
    first, second = done.stderr.splitlines()
    assert first.startswith(f"hvdliterun: h1 has no {fake}: install Python and hvdlite")
    assert second.startswith("hvdliterun: h2 has no hvdlite: install it there")


TCP = ["--transport", "tcp"]


@pytest.mark.parametrize(
    ("how", "code", "options"),
    [
        *(("raise", 1, []), ("exit", 7, []), ("kill", 137, [])),
        *(("raise", 1, TCP), ("kill", 137, TCP)),
    ],
)
def test_a_failure_ends_all_hosts_in_seconds(cluster, how, code, options):
    line = [*options, "-n", 4, "-H", cluster.hostfile, sys.executable, SCRIPTS / "fails.py", how]
    launcher = start(*line, prefix=cluster.command([]), env=cluster.environment())
    for text in launcher.stdout:
        if "line 29" in text:
            break
    began = time.monotonic()
    _, err = launcher.communicate(timeout=TIMEOUT)
    seconds = time.monotonic() - began
    assert launcher.returncode == code, err
    assert "hvdliterun: rank 1 on h1 " in err
    assert seconds < 60, err  # takes 1 s on an idle machine; the ranks would run 600 s
    assert_all_clean(cluster)


@pytest.mark.parametrize(("hosts", "size"), [("h0:2,h1:2", 4), ("h0,h1,h2", 3)])
def test_a_killed_rank_is_replaced_in_an_elastic_job_on_several_hosts(on_cluster, hosts, size):
    last = size - 1
    line, variables = elastic(["-n", size, "-H", hosts], last, 5, size)
    done = on_cluster(*line, env=variables).passed()
    assert ends_of(done)[1] == {f"{rank} of {size}" for rank in range(size)}
    assert f"rank {last} on h{hosts.count('h') - 1} was killed by SIGKILL" in done.err


def kill_at_random(on_cluster, hosts, size, kills):
    """Return for each kill the seconds until the remaining ranks had completed a training step."""
    dying = random.sample(range(size), kills)
    after = [
        f"{random.choice((0, 0.02, 0.1, 0.3, 1)) * random.random():.3f}" if i in dying else "-"
        for i in range(size)
    ]
    tests = SCRIPTS.parent.parent
    script = [sys.executable, tests / "scripts" / "elastic_numpy.py", "-", 0, 300]
    done = on_cluster(
        "--elastic", "-n", size, "-H", hosts, *script,
        env={"DIES_AFTER": ",".join(after), "PYTHONPATH": str(tests)},
    )  # fmt: skip
    assert done.code == 0, done.out + done.err
    assert done.out.count("RESULT") >= size - kills, done.out
    went_on = [float(found) for found in re.findall(r"WENT ON (\S+)", done.out)]
    killed = [float(found) for found in re.findall(r"KILLED (\S+)", done.out)]
    later = [[moment - each for moment in went_on if moment > each] for each in killed]
    return [min(each) for each in later if each]


@pytest.mark.timeout(60 + TIMEOUT * KILLS)
def test_random_kills_on_several_hosts_lose_no_commit(on_cluster):
    """The script also compares the bits of the results; a job that hangs reaches TIMEOUT."""
    sizes = {"h0,h1,h2,h3": 4, "h0:2,h1:2": 4, "h0,h1:2": 3}
    kill_many(sizes, lambda hosts, n: kill_at_random(on_cluster, hosts, sizes[hosts], n), KILLS)


def test_without_mpi_ranks_are_started_through_ssh(on_cluster):
    code = f"import sys; sys.modules['mpi4py'] = None; {WHERE}"
    env = {"HVDLITE_MPIRUN": "/nowhere"}
    done = on_cluster(*TCP, "-n", 6, "-H", "h1:2,h0:1,h2:3", *python(code), env=env).passed()
    places = ["h1 0 0", "h1 1 1", "h0 2 0", "h2 3 0", "h2 4 1", "h2 5 2"]
    assert sorted(done.out.splitlines()) == [f"[{i}] {at}" for i, at in enumerate(places)]


@pytest.mark.parametrize("options", [[], TCP], ids=["MPI", "tcp"])
def test_ctrl_c_ends_all_hosts(cluster, options):
    code = "import hvdlite as h, time; h.init(); print('up'); time.sleep(600)"
    line = [*HVDLITERUN, *options, "-n", "4", "-H", str(cluster.hostfile), *python(code)]
    # interrupt() waits only for nsenter; hvdliterun itself must have ended, too
    began = interrupt(cluster.command(line), 4, env=cluster.environment())
    assert_all_clean(cluster)
    assert time.monotonic() - began < 60  # takes 1 s on an idle machine


def assert_all_clean(cluster):
    for host in cluster.names:
        assert_clean(cluster, host)
