"""Kubernetes: a manifest for the MPI operator (kubeflow.org/v2beta1), in JSON for kubectl.

The operator starts a worker pod with sshd for each process, and a launcher pod that runs
hvdliterun. The launcher pod's environment tells mpirun where the host file is.
"""

import json
from typing import Any, Dict

from hvdlite.launch import submit
from hvdlite.launch.job import Command, Job, LaunchError


def command(job: Job) -> Command:
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
