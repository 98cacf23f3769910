"""Run hvdliterun as a user does, and check that it leaves nothing behind."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from jobs import HVDLITERUN, TESTS, Job, processes_of, wait_until

SCRIPTS = Path(__file__).parent / "scripts"
TIMEOUT = 150  # generous, for a busy machine: only a job that hangs reaches it
# A program whose ranks print their host, rank and size.
WHERE = "import os, hvdlite as h; h.init(); print(os.uname().nodename, h.rank(), h.size())"


class Run(NamedTuple):
    """The exit code, output and duration of a command."""

    code: int
    out: str
    err: str
    seconds: float

    def passed(self):
        assert self.code == 0, self.out + self.err
        return self


def call(*argv, prefix=(), **options):
    """Run hvdliterun to its end."""
    began = time.monotonic()
    done = subprocess.run(
        [*prefix, *HVDLITERUN, *map(str, argv)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        stdin=subprocess.DEVNULL,
        **options,
    )
    return Run(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


def start(*argv, prefix=(), **options):
    """Start hvdliterun with its output in pipes; return the process."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*prefix, *HVDLITERUN, *map(str, argv)], **pipes, **options)


def elastic(where, dead, step, size):
    """Return arguments and environment of a job that trains until it has `size` ranks again."""
    script = TESTS / "scripts" / "elastic_numpy.py"
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    words = ["--elastic", *where, sys.executable, script, dead, step, f"10 at {size}"]
    return words, {"PYTHONPATH": path}


def ends_of(done):
    """Return the reports of an elastic job's ranks, and each rank's final "RANK of SIZE"."""
    found = Job(done.code, done.out, done.seconds).results().values()
    return list(found), {f"{each['place']} of {each['size']}" for each in found}


def python(code):
    return [sys.executable, "-c", code]


def told(err):
    """Return the lines of an output without those about progress."""
    return [line for line in err.splitlines() if " hosts have answered; " not in line]


def interrupt(command, ranks, seconds=TIMEOUT, **options):
    """Start hvdliterun, wait for "up" from all ranks and send SIGINT; return the time of SIGINT.

    Like a terminal at Ctrl-C, send SIGINT to the whole process group, also to a prefix of the
    command.
    """
    launcher = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, **options
    )
    for _ in range(ranks):
        assert "up" in launcher.stdout.readline()
    began = time.monotonic()
    subprocess.run(["kill", "-INT", "--", f"-{launcher.pid}"], check=True)
    launcher.wait(seconds)
    launcher.stdout.close()
    return began


def assert_clean(cluster, host):
    """Assert that a host soon has no process or shared memory left: prted ends after mpirun.

    If something is left, remove it, so that the next test does not find it.
    """
    deadline = time.monotonic() + 30  # generous, for a busy machine
    while (left := (cluster.processes(host), cluster.shared_memory(host))) != ([], []):
        if time.monotonic() > deadline:
            cluster.clear(host)
            raise AssertionError(f"{host}: {left}")
        time.sleep(0.1)


def left_with(marker, seconds=30):
    """Return the processes with `marker` in their environment that still run after `seconds`."""
    wait_until(lambda: not processes_of(marker), seconds)
    return processes_of(marker)


def family(pid):
    """Return the hvdliterun that is an ancestor of this process, and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    while b"hvdlite.launch\0" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parents[pid]
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


def listening(pids):
    """Return the local addresses, as in /proc, of listening TCP and unconnected UDP sockets."""
    inodes = set()
    for pid in pids:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(path))
    found = set()
    for table in ("tcp", "tcp6", "udp", "udp6"):
        state = "0A" if table.startswith("tcp") else "07"
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == state and f"socket:[{words[9]}]" in inodes:
                found.add(words[1].split(":")[0])
    return found
