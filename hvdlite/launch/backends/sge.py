"""Grid Engine: qsub of a script that runs hvdliterun on the hosts of its parallel environment.

Inside the job, PE_HOSTFILE names the hosts and their slots. ``qrsh -inherit``, not ssh, starts
processes on other hosts, because Grid Engine accounts for processes that qrsh starts.
"""

import os
from typing import List

from hvdlite.launch import mpirun, submit
from hvdlite.launch.job import Command, Job, LaunchError
from hvdlite.machine.files import text_of
from hvdlite.machine.hosts import SSH, Host, is_here, named


class QRSH(SSH):
    """Runs commands on the hosts of a job through Grid Engine's qrsh."""

    def command(self) -> List[str]:
        return ["qrsh", "-inherit", "-nostdin", "-V"]


def inside() -> bool:
    return "PE_HOSTFILE" in os.environ


def command(job: Job) -> Command:
    return _inside(job) if inside() else _submit(job)


def _inside(job: Job) -> Command:
    hosts = granted_hosts(text_of(os.environ["PE_HOSTFILE"]))
    if len(hosts) == 1 and is_here(hosts[0].name):
        return mpirun.command(job, where="local")
    return mpirun.command(job._replace(hosts=hosts, ssh=QRSH()), where="ssh")


def granted_hosts(text: str) -> List[Host]:
    """Parse a PE_HOSTFILE. Each line has a host, its slots, its queue and its processor range.

    >>> granted_hosts("node1 4 all.q@node1 UNDEFINED")
    [Host(name='node1', slots=4)]
    """
    lines = [line.split() for line in text.splitlines() if line.strip()]
    return [named(name, int(slots)) for name, slots, *_ in lines]


def _submit(job: Job) -> Command:
    if not job.parallel_environment:
        raise LaunchError(
            "--launcher sge needs the name of a parallel environment: give --pe (qconf -spl lists "
            "them)"
        )
    log = f"{job.name}.$JOB_ID.out"
    argv = ["qsub", "-terse", "-cwd", "-V", "-S", "/bin/sh", "-N", job.name, "-j", "y", "-o", log]
    argv += ["-pe", job.parallel_environment, str(job.processes)]
    argv += ["-q", job.queue] if job.queue else []
    argv += [] if job.batch else ["-sync", "y"]
    script = submit.script([], submit.command_inside(job))
    return Command(argv, script=script, watched=False, log=log, cancel=["qdel"])
