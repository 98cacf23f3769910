"""Kubernetes: a manifest for the MPI operator (kubeflow.org/v2beta1), which `kubectl apply` takes.

The operator starts one pod a slot group that runs sshd, and a launcher pod where hvdliterun finds
the host file that mpirun is given there by the environment.
"""

import json
from typing import Any, Dict, List

from hvdlite.launch import submit
from hvdlite.launch.job import Job, LaunchError, Plan


def plan(job: Job) -> Plan:
    if not job.image:
        raise LaunchError("--launcher k8s needs --image, a container image that has hvdlite in it")
    return Plan(["kubectl", "create", "-f", "-"], script=yaml(manifest(job)), watched=False)


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


def yaml(value: Any) -> str:
    """Return YAML, with scalars as JSON, which is also YAML."""
    return "\n".join(_lines(value)) + "\n"


def _lines(value: Any) -> List[str]:
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in _entry(f"{key}:", item)]
    return [line for item in value for line in _entry("-", item)]


def _entry(head: str, item: Any) -> List[str]:
    if not isinstance(item, (dict, list)):
        return [f"{head} {json.dumps(item)}"]
    inner = _lines(item)
    if head == "-":
        return [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
    return [head, *(f"  {line}" for line in inner)]
