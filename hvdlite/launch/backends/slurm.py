"""Slurm: mpirun or srun inside an allocation; outside, salloc or sbatch gets an allocation first.

``srun --mpi=pmix`` starts ranks directly, but only if Slurm's PMIx works with the PMIx of the MPI
library. Otherwise each rank becomes a job of its own, so ``srun_wires_up`` first tests two ranks.
"""

import os
import subprocess
import sys

from hvdlite.launch import mpirun, submit
from hvdlite.launch.job import Command, Job

_SRUN = ["srun", "--mpi=pmix", "--kill-on-bad-exit=0"]
_WITHOUT_MPI = ["srun", "--mpi=none", "--kill-on-bad-exit=0"]
_TEST = [sys.executable, "-m", "mpi4py.bench", "helloworld"]  # each rank prints the size of the job
TEST_SECONDS = 20  # limit for the test, because srun may hang if PMIx does not work; chosen


def inside() -> bool:
    return "SLURM_JOB_ID" in os.environ


def command(job: Job) -> Command:
    if inside():
        return _inside(job)
    if job.batch:
        return Command(["sbatch"], script=_script(job), watched=False)
    options = [f"--ntasks={job.processes}", f"--job-name={job.name}"]
    options += [f"--partition={job.queue}"] if job.queue else []
    return Command(["salloc", *options, *submit.command_inside(job)], watched=False)


def _inside(job: Job) -> Command:
    if job.transport == "tcp":
        return Command([*_WITHOUT_MPI, f"--ntasks={job.processes}", *job.agent])
    if srun_wires_up(job):
        return Command([*_SRUN, f"--ntasks={job.processes}", *job.agent])
    note = "srun --mpi=pmix does not join ranks of this MPI: mpirun starts them"
    return mpirun.command(job, where="")._replace(notes=[note])


def srun_wires_up(job: Job) -> bool:
    """Return True if srun joins two test ranks into one MPI job, or if mode ps needs no MPI."""
    if job.mode == "ps":
        return True
    if job.processes < 2 or "pmix" not in _srun_types():
        return False
    argv = [*_SRUN, "--ntasks=2", "--quiet", *_TEST]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TEST_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0 and done.stdout.count(" of 2 ") == 2


def _srun_types() -> str:
    try:
        done = subprocess.run(["srun", "--mpi=list"], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout + done.stderr


def _script(job: Job) -> str:
    lines = [f"#SBATCH --job-name={job.name}", f"#SBATCH --ntasks={job.processes}"]
    lines += [f"#SBATCH --partition={job.queue}"] if job.queue else []
    lines += [f"#SBATCH --output={job.name}-%j.out"]
    return submit.script(lines, submit.command_inside(job))
