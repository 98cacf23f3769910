"""Starts the agents of a job whose ranks need no MPI: here, and over ssh on other hosts.

    python -m hvdlite.launch.starter

The program reads an assignment from stdin, a line of JSON: the number of processes for each host,
the ssh command, and the agents' command, which may be too long for a command line. The program
starts itself on other hosts, with an assignment on stdin, so command lines there show nothing of
the job. On another host, the program ends its agents when its stdin ends.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Tuple

from hvdlite.launch import channel
from hvdlite.launch.environment import RANK
from hvdlite.launch.job import Command, Job
from hvdlite.launch.ranks import placement
from hvdlite.machine.hosts import is_here

# Python on another host needs these variables to start; the agent sets all other variables.
FORWARDED = (channel.VARIABLE, "PATH", "LD_LIBRARY_PATH", "PYTHONPATH")
TERM_SECONDS = 2.0  # seconds from SIGTERM to SIGKILL; more than LEAVE_SECONDS of supervision.py
_ME = [sys.executable, "-m", "hvdlite.launch.starter"]


def command(job: Job, where: str) -> Command:
    """Return the command that starts all agents; ``where`` is as for ``mpirun.command``."""
    is_local = where == "local"
    return command_on(job, [("localhost", job.processes)] if is_local else placement(job), 0)


def command_on(job: Job, hosts: List[Tuple[str, int]], first: int) -> Command:
    """Return the command that starts the agents of each host, numbered from ``first``."""
    assignment = {"hosts": hosts, "first": first, "ssh": job.ssh.command(), "command": job.agent}
    return Command(_ME, script=json.dumps(assignment) + "\n", remote=bool(job.hosts))


def main() -> int:
    assignment = json.loads(sys.stdin.readline())
    return _on_all_hosts(assignment) if "hosts" in assignment else _on_this_host(assignment)


def _on_all_hosts(assignment: Dict[str, Any]) -> int:
    started: List[subprocess.Popen] = []
    first = assignment["first"]
    for host, count in assignment["hosts"]:
        part = {"first": first, "count": count, "command": assignment["command"]}
        started += _agents(part) if is_here(host) else [_over_ssh(assignment["ssh"], host, part)]
        first += count
    return max(process.wait() & 255 for process in started)


def _agents(part: Dict[str, Any]) -> List[subprocess.Popen]:
    ranks = range(part["first"], part["first"] + part["count"])
    return [
        subprocess.Popen(part["command"], env={**os.environ, RANK: str(rank)}) for rank in ranks
    ]


def _over_ssh(ssh: List[str], host: str, part: Dict[str, Any]) -> subprocess.Popen:
    """Start this program on another host; its stdin stays open until this process ends."""
    env = {name: os.environ[name] for name in FORWARDED if name in os.environ}
    path = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
    process = subprocess.Popen(
        [*ssh, host, shlex.join(["env", path, *_ME])], stdin=subprocess.PIPE, text=True
    )
    assert process.stdin
    process.stdin.write(json.dumps({**part, "env": env}) + "\n")
    process.stdin.flush()
    return process


def _on_this_host(part: Dict[str, Any]) -> int:
    os.environ.update(part["env"])
    agents = _agents(part)
    threading.Thread(target=_end_with_the_input, args=(agents,), daemon=True).start()
    return max(agent.wait() & 255 for agent in agents)


def _end_with_the_input(agents: List[subprocess.Popen]) -> None:
    sys.stdin.read()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for agent in agents:
            if agent.poll() is None:
                agent.send_signal(number)
        time.sleep(TERM_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
