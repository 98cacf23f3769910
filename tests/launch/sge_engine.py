"""A real Grid Engine on the hosts of an emulated cluster: one qmaster, and one execd per host.

It needs Debian's gridengine-master, -exec and -client. The hosts use copies of their folders, so
the machine's own files do not change.
"""

import contextlib
import subprocess
from pathlib import Path
from typing import Dict

from cluster import wait_for

LIBRARY, SPOOL = "/var/lib/gridengine", "/var/spool/gridengine"
COMMON = f"{LIBRARY}/default/common"
TOOLS = ("sge_qmaster", "sge_execd", "qconf", "qsub")
UP_SECONDS = 60

# These replace values that `qconf -s...` prints: root may run jobs, each job gets a group, and
# scheduling is immediate.
CONFIGURATION = {"min_uid": "0", "min_gid": "0", "gid_range": "20000-20100"}
SCHEDULER = {"schedule_interval": "0:0:1", "flush_submit_sec": "1", "flush_finish_sec": "1"}
QUEUE = {
    "qname": "all.q",
    "slots": "2",
    "pe_list": "mpi",
    "load_thresholds": "NONE",
    "shell": "/bin/sh",
    "shell_start_mode": "unix_behavior",
}
PARALLEL_ENVIRONMENT = """\
pe_name            mpi
slots              99
user_lists         NONE
xuser_lists        NONE
start_proc_args    NONE
stop_proc_args     NONE
allocation_rule    $fill_up
control_slaves     TRUE
job_is_first_task  FALSE
urgency_slots      min
accounting_summary FALSE
qsort_args         NONE
"""


def is_set_up() -> bool:
    return Path(COMMON, "bootstrap").exists()


class GridEngine:
    """A Grid Engine that runs on all hosts of a cluster until the hosts end."""

    def __init__(self, cluster):
        self.cluster = cluster
        self._copy_folders()
        self.run("sge_qmaster")
        self._wait("qconf", "-sh")
        for host in cluster.names:
            self.run("qconf", "-ah", host)
            self.run("qconf", "-as", host)
        self._configure()
        for host in cluster.names:
            self.run("sge_execd", host=host)
        self._wait("qhost", "-h", ",".join(cluster.names), until=lambda out: out.count("lx") > 1)

    def environment(self) -> Dict[str, str]:
        return {**self.cluster.environment(), "SGE_ROOT": LIBRARY, "SGE_CELL": "default"}

    def run(self, *argv: str, host: str = "h0") -> str:
        done = self.cluster.run(
            list(argv), host, env=self.environment(), capture_output=True, text=True, timeout=30
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(argv)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _copy_folders(self) -> None:
        folder = self.cluster.state / "sge"
        folder.mkdir()
        for source, name in ((COMMON, "common"), (SPOOL, "spool")):
            subprocess.run(["cp", "-a", source, str(folder / name)], check=True)
            for host in self.cluster.names:
                self.run("mount", "--bind", str(folder / name), source, host=host)
        (folder / "common" / "act_qmaster").write_text("h0\n")

    def _configure(self) -> None:
        self._edit("global", ("qconf", "-sconf"), ("qconf", "-Mconf"), CONFIGURATION)
        self._edit("scheduler", ("qconf", "-ssconf"), ("qconf", "-Msconf"), SCHEDULER)
        self.run("qconf", "-Ap", self._file("mpi", PARALLEL_ENVIRONMENT))
        hosts = {"hostlist": " ".join(self.cluster.names)}
        self._edit("all.q", ("qconf", "-sq"), ("qconf", "-Aq"), {**QUEUE, **hosts})

    def _edit(self, name, show, change, values: Dict[str, str]) -> None:
        """Load a configuration that Grid Engine prints, with some values changed."""
        lines = []
        for line in self.run(*show).splitlines():
            key = line.split(None, 1)[0] if line.strip() else ""
            lines.append(f"{key} {values[key]}" if key in values else line)
        self.run(*change, self._file(name, "\n".join(lines) + "\n"))

    def _file(self, name: str, text: str) -> str:
        path = self.cluster.state / "sge" / name
        path.write_text(text)
        return str(path)

    def _wait(self, *argv: str, until=lambda out: True) -> None:
        def is_up() -> bool:
            with contextlib.suppress(RuntimeError):
                return until(self.run(*argv))
            return False

        wait_for(is_up, f"Grid Engine: {argv}", UP_SECONDS)
