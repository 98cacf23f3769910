"""Kubernetes and Hadoop YARN, which start hvdliterun in a container.

Kubernetes gets a manifest for the MPI operator (kubeflow.org/v2beta1), in JSON for kubectl. The
operator starts a worker pod with sshd for each process, and a launcher pod that runs hvdliterun.
The launcher pod's environment tells mpirun where the host file is.

YARN's distributed shell starts hvdliterun. MPI can't start processes in YARN's containers, so all
ranks of a job share one container, which has room for all of them. A job with MXNet's parameter
server also gets one container, although its processes can run in several.
"""

import json
import os
import shlex
from typing import Any, Dict

from hvdlite.launch import submit
from hvdlite.launch.job import Command, Job, LaunchError

_JAR = "share/hadoop/yarn/hadoop-yarn-applications-distributedshell-*.jar"
_CLIENT = "org.apache.hadoop.yarn.applications.distributedshell.Client"
MEMORY_PER_PROCESS = 2048  # MiB; chosen: YARN may end a container that uses more


def kubernetes(job: Job) -> Command:
    if not job.image:
        raise LaunchError("--launcher k8s needs --image, a container image that has hvdlite in it")
    script = json.dumps(manifest(job), indent=2) + "\n"
    return Command(["kubectl", "create", "-f", "-"], script=script, watched=False)


def manifest(job: Job) -> Dict[str, Any]:
    """Return the MPIJob: a launcher, and a worker pod for each process."""
    inner = ["python", *submit.command_inside(job, "--launcher", "mpi")[1:]]
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": job.name},
        "spec": {
            "slotsPerWorker": 1,
            "runPolicy": {"cleanPodPolicy": "Running"},
            "mpiReplicaSpecs": {
                "Launcher": _replicas(
                    1, {"name": "launcher", "image": job.image, "command": inner}
                ),
                "Worker": _replicas(job.processes, {"name": "worker", "image": job.image}),
            },
        },
    }


def _replicas(count: int, container: Dict[str, Any]) -> Dict[str, Any]:
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container]}},
    }


def yarn(job: Job) -> Command:
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
