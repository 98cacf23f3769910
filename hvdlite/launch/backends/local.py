"""All ranks on this host, by mpirun."""

from hvdlite.launch import mpirun
from hvdlite.launch.job import Job, Plan


def plan(job: Job) -> Plan:
    return mpirun.plan(job, where="here")
