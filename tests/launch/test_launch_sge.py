"""``--launcher sge`` on a real Grid Engine of two emulated hosts."""

import sys
import time

import cluster as clusters
import pytest
import sge_engine
from launching import HVDLITERUN, SCRIPTS, WHERE, call, interrupt, python


@pytest.fixture(scope="module")
def grid():
    if not sge_engine.is_set_up():
        pytest.skip("no Grid Engine is set up")
    with clusters.or_skip(2, *sge_engine.TOOLS) as hosts:
        yield sge_engine.GridEngine(hosts)


def on_grid(grid, folder, *argv):
    prefix = grid.cluster.command([], cwd=str(folder))
    line = ["--launcher", "sge", "--pe", "mpi", *argv]
    return call(*line, prefix=prefix, env=grid.environment())


def test_ranks_run_on_the_hosts_that_grid_engine_gave(grid, tmp_path):
    done = on_grid(grid, tmp_path, "-n", 4, sys.executable, "-c", WHERE, "a 'b'").passed()
    hosts = sorted(done.out.split()[1::4])
    assert hosts == ["h0", "h0", "h1", "h1"], done.out + done.err
    assert sorted(done.out.split()[2::4]) == ["0", "1", "2", "3"]


def test_a_failure_is_reported_with_exit_code_and_host(grid, tmp_path):
    done = on_grid(grid, tmp_path, "-n", 2, sys.executable, SCRIPTS / "fails.py", "exit")
    assert done.code == 7, done.out + done.err
    assert "hvdliterun: rank 1 on h" in done.out


def test_ctrl_c_deletes_the_job_of_grid_engine(grid, tmp_path):
    code = "import time; print('up'); time.sleep(60)"
    line = [*HVDLITERUN, "--launcher", "sge", "--pe", "mpi", "-n", "2", *python(code)]
    interrupt(grid.cluster.command(line, cwd=str(tmp_path)), 2, 50, env=grid.environment())
    deadline = time.monotonic() + 60
    while grid.run("qstat") and time.monotonic() < deadline:
        time.sleep(0.2)
    assert grid.run("qstat") == ""
