"""Compares a job with this host's cores and open files before it starts."""

import os
import resource
import sys
from typing import Optional

from hvdlite.launch.hosts import is_here, place
from hvdlite.launch.job import Job, LaunchError

FILES, FILES_A_RANK, FILES_ELSEWHERE = 24, 5, 2  # of mpirun; measured with 2 and with 8 ranks
CROWD = 8  # ranks on a core: beyond, the start takes seconds
SECONDS_A_RANK = 0.2  # of a core, to start; 1000 ranks on two cores took 97 s


def prepare(job: Job) -> None:
    """Allow as many open files as the job needs here, and warn of far more ranks than cores.

    :raises LaunchError: this process may not allow itself so many.
    """
    here = _ranks_here(job)
    _allow_files(here, FILES + FILES_A_RANK * here + FILES_ELSEWHERE * (job.processes - here))
    warning = crowd(here, len(os.sched_getaffinity(0)))
    if warning:
        print(f"hvdliterun: WARNING: {warning}", file=sys.stderr, flush=True)


def crowd(ranks: int, cores: int) -> Optional[str]:
    """Return a warning with figures, if the ranks are far more than the cores.

    >>> crowd(16, 2)
    """
    if ranks <= CROWD * cores:
        return None
    return (
        f"{ranks} ranks share the cores of this host, {cores}: the start alone takes about "
        f"{ranks * SECONDS_A_RANK / cores:.0f} s, and {cores} ranks would train faster"
    )


def _ranks_here(job: Job) -> int:
    if job.hosts:
        return sum(count for name, count in place(job.hosts, job.workers) if is_here(name))
    return job.processes if job.launcher == "local" else 0


def _allow_files(ranks: int, needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise LaunchError(
                f"{ranks} ranks on this host need about {needed} open files, and the limit is "
                f"{hard}: raise it (`ulimit -n {needed}`), or start fewer ranks"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
