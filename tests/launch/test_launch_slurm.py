"""``--launcher slurm`` on a real Slurm of two emulated hosts."""

import subprocess
import sys
from pathlib import Path

import cluster as clusters
import pytest
import slurm_engine
from launching import HVDLITERUN, SCRIPTS, TIMEOUT, WHERE, call, interrupt, python

from hvdlite.machine import probe

INIT = "import hvdlite as h; h.init(); print('SIZE', h.size())"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def slurm():
    with clusters.or_skip(2, *slurm_engine.TOOLS) as hosts:
        yield slurm_engine.Slurm(hosts)


@pytest.fixture(autouse=True)
def no_other_job(slurm):
    """Wait until Slurm has ended all jobs of the previous test."""
    clusters.wait_for(lambda: queue(slurm) == [], "an empty queue")


def on_slurm(slurm, *argv, inside=()):
    prefix = [*slurm.cluster.command([]), *inside]
    return call(*argv, prefix=prefix, env=slurm.environment())


def test_outside_an_allocation_the_launcher_requests_one_from_slurm(slurm):
    done = on_slurm(slurm, "--launcher", "slurm", "-n", 4, sys.executable, "-c", WHERE).passed()
    expected = ["[0] h0 0 4", "[1] h0 1 4", "[2] h1 2 4", "[3] h1 3 4"]
    assert sorted(done.out.splitlines()) == expected


def test_inside_an_allocation_slurm_is_the_default_launcher(slurm):
    line = ["-n", 2, sys.executable, "-c", WHERE]
    done = on_slurm(slurm, *line, inside=["salloc", "--quiet", "--ntasks=2"]).passed()
    assert sorted(done.out.splitlines()) == ["[0] h0 0 2", "[1] h0 1 2"]


def test_a_failure_is_reported_with_exit_code_and_host(slurm):
    done = on_slurm(
        slurm, "--launcher", "slurm", "-n", 4, sys.executable, SCRIPTS / "fails.py", "exit"
    )
    assert done.code == 7
    assert "hvdliterun: rank 1 on h0 failed with exit code 7" in done.err


def test_a_batch_job_writes_the_output_of_each_rank_to_its_log(slurm, tmp_path):
    line = ["--launcher", "slurm", "--batch", "--jobname", "j", "-n", 2, sys.executable, "-c"]
    prefix = slurm.cluster.command([], cwd=str(tmp_path))
    call(*line, WHERE, prefix=prefix, env=slurm.environment()).passed()
    (log,) = clusters.wait_for(lambda: list(tmp_path.glob("j-*.out")), "the log")
    whole = lambda: len(log.read_text().splitlines()) == 2 and log.read_text()  # noqa: E731
    lines = clusters.wait_for(whole, "a line of each rank")
    assert sorted(lines.splitlines()) == ["[0] h0 0 2", "[1] h0 1 2"]


def test_the_example_script_for_slurm_runs(slurm, tmp_path):
    """Options of sbatch adapt the script to the ranks and cores of the emulated hosts."""
    (tmp_path / "env/bin").mkdir(parents=True)
    (tmp_path / "env/bin/activate").write_text(f"PATH={Path(sys.executable).parent}:$PATH\n")
    (tmp_path / "train.py").write_text(INIT)
    line = ["sbatch", "--wait", "--ntasks-per-node=1", "--cpus-per-task=1", "--output=log"]
    prefix = slurm.cluster.command([], cwd=str(tmp_path))
    env = {**slurm.environment(), "HOME": str(tmp_path)}
    done = subprocess.run([*prefix, *line, EXAMPLES / "deploy/job.slurm"], env=env, timeout=100)
    log = (tmp_path / "log").read_text()
    assert done.returncode == 0 and log.count("SIZE 2") == 2, log


def test_ctrl_c_releases_the_slurm_allocation(slurm):
    code = "import time; print('up'); time.sleep(60)"
    line = [*HVDLITERUN, "--launcher", "slurm", "-n", "2", *python(code)]
    interrupt(slurm.cluster.command(line), 2, 50, env=slurm.environment())
    clusters.wait_for(lambda: queue(slurm) == [], "an empty queue")


MPIRUN_ONE = f"{probe.find_program('mpirun')} --allow-run-as-root -n 1 "


def test_srun_starts_a_job_without_mpi(slurm):
    code = f"import sys; sys.modules['mpi4py'] = None\n{INIT}"
    line = ["srun", "--mpi=none", "--ntasks=4", *python(code)]
    done = slurm.cluster.run(line, env=slurm.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, 4 * "SIZE 4\n"), done.stderr


def test_with_transport_tcp_the_launcher_uses_srun(slurm):
    code = f"import sys; sys.modules['mpi4py'] = None\n{WHERE}"
    line = ["--transport", "tcp", "-n", 4, *python(code)]
    done = on_slurm(slurm, *line, inside=["salloc", "--quiet", "--ntasks=4"]).passed()
    expected = ["[0] h0 0 4", "[1] h0 1 4", "[2] h1 2 4", "[3] h1 3 4"]
    assert sorted(done.out.splitlines()) == expected


def test_srun_with_a_pmi_that_mpi_does_not_support_is_an_error(slurm):
    line = ["srun", "--mpi=pmi2", "--ntasks=2", *python(INIT)]
    done = slurm.cluster.run(line, env=slurm.environment(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("srun has started this process as one of 2 (SLURM_PROCID=") == 2
    assert "`hvdliterun -n 2 python train.py` inside the allocation" in done.stderr


@pytest.mark.parametrize("start", ["", "srun --ntasks=1 ", MPIRUN_ONE])
@pytest.mark.parametrize("inside", ["sbatch", "salloc"])
def test_one_process_in_a_slurm_allocation_of_two_is_one_rank(slurm, inside, start, tmp_path):
    script, out = tmp_path / "script.sh", tmp_path / "out"
    script.write_text(f'#!/bin/sh\n{start}{sys.executable} -c "{INIT}" > {out} 2>&1\n')
    script.chmod(0o755)
    options = ["--wait", "--output=/dev/null"] if inside == "sbatch" else ["--quiet"]
    line = [inside, "--ntasks=2", *options, str(script)]
    slurm.cluster.run(line, env=slurm.environment(), capture_output=True, timeout=TIMEOUT)
    assert out.read_text() == "SIZE 1\n"


def queue(slurm):
    ask = ["squeue", "--noheader"]
    done = slurm.cluster.run(ask, env=slurm.environment(), capture_output=True, text=True)
    return done.stdout.split()
