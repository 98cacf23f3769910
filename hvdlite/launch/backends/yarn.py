"""Hadoop YARN: YARN's distributed shell starts hvdliterun in a container.

MPI can't start processes in YARN's containers, so all ranks of a job share one container of the
size that they need. A job with MXNet's parameter server also gets one container, although its
processes could use several.
"""

import os
import shlex

from hvdlite.launch import submit
from hvdlite.launch.job import Command, Job

_JAR = "share/hadoop/yarn/hadoop-yarn-applications-distributedshell-*.jar"
_CLIENT = "org.apache.hadoop.yarn.applications.distributedshell.Client"
MEMORY_PER_PROCESS = 2048  # MiB; chosen: YARN may end a container that uses more


def command(job: Job) -> Command:
    jar = f"{os.environ.get('HADOOP_HOME', '$HADOOP_HOME')}/{_JAR}"
    options = [
        *("-appname", job.name),
        *("-shell_command", shlex.join(submit.command_inside(job, "--launcher", "local"))),
        *("-num_containers", "1"),
        *("-container_vcores", str(job.processes)),
        *("-container_memory", str(job.processes * MEMORY_PER_PROCESS)),
    ]
    options += ["-queue", job.queue] if job.queue else []
    # sh expands the * in the jar's path to the jar's version
    line = f"exec yarn jar {jar} {_CLIENT} -jar {jar} {shlex.join(options)}"
    return Command(["sh", "-c", line], watched=False)
