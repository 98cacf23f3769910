"""A real Slurm on the hosts of an emulated cluster: munge, one slurmctld, one slurmd per host.

It needs Debian's slurm-wlm and munge. It neither reads nor writes the machine's configuration.
"""

import os
import subprocess
from typing import Dict

from cluster import wait_for

CONFIG = """\
ClusterName=emulated
SlurmctldHost={head}({address})
AuthType=auth/munge
AuthInfo=socket=/run/munge.socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmUser=root
SlurmdUser=root
MpiDefault=none
ReturnToService=2
KillWait=2
StateSaveLocation={state}/slurm/state
SlurmdSpoolDir=/run/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile={state}/slurmctld.log
SlurmdLogFile={state}/slurmd.%h.log
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""
TOOLS = ("munged", "slurmctld", "slurmd", "srun", "salloc", "sbatch")
UP_SECONDS = 60


class Slurm:
    """A Slurm that runs on all hosts of a cluster until the hosts end."""

    def __init__(self, cluster):
        self.cluster = cluster
        self._write_config()
        self._start_munge()
        self.start("slurmctld")
        for host in cluster.names:
            self.start("slurmd", "-N", host, host=host)
        self._wait_until_idle()

    def environment(self) -> Dict[str, str]:
        return {**self.cluster.environment(), "SLURM_CONF": str(self.cluster.state / "slurm.conf")}

    def start(self, *argv: str, host: str = "h0") -> None:
        """Run a daemon's command, which returns when the daemon runs in the background."""
        options = {"env": self.environment(), "capture_output": True, "timeout": 20}
        self.cluster.run(list(argv), host, check=True, **options)

    def _write_config(self) -> None:
        cluster = self.cluster
        pairs = zip(cluster.names, cluster.addresses)
        nodes = "\n".join(f"NodeName={n} NodeAddr={a} CPUs=2" for n, a in pairs)
        fields = {"head": "h0", "address": cluster.addresses[0], "state": cluster.state}
        (cluster.state / "slurm" / "state").mkdir(parents=True)
        (cluster.state / "slurm.conf").write_text(CONFIG.format(nodes=nodes, **fields))

    def _start_munge(self) -> None:
        key = self.cluster.state / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        where = {"pid": "/run/munged.pid", "log": "/run/munged.log", "seed": "/run/munged.seed"}
        files = [f"--{name}-file={path}" for name, path in where.items()]
        options = ["--force", f"--key-file={key}", "--socket=/run/munge.socket", *files]
        for host in self.cluster.names:
            self.start("munged", *options, host=host)

    def _wait_until_idle(self) -> None:
        def is_idle() -> bool:
            ask = ["sinfo", "--noheader", "--format=%T"]
            done = self.cluster.run(ask, env=self.environment(), capture_output=True, text=True)
            return done.stdout.split() == ["idle"]

        try:
            wait_for(is_idle, "Slurm", UP_SECONDS)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {self._logs()}") from None

    def _logs(self) -> str:
        files = sorted(self.cluster.state.glob("slurm*.log"))
        return "".join(subprocess.getoutput(f"tail -n 5 {file}") for file in files)
