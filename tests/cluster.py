#!/usr/bin/env python3
"""A cluster on one machine: hosts with separate names, addresses, /dev/shm, processes and sshd.

    python tests/cluster.py -- hostname                     one command on host h0
    python tests/cluster.py --hosts 4 --rate 1gbit -- bash  a shell there; links of 1 Gbit/s

Each host is a set of Linux namespaces that exist while one process, its sshd, runs. A switch, which
is a bridge in another network namespace, connects the hosts. When its sshd ends, the kernel removes
all of the host: processes, addresses, mounts and shared memory. The command runs on h0 with these
variables:

    CLUSTER_HOSTS   a host file: h0 to h3, one slot each
    CLUSTER_SSH     an ssh command that reaches every host without questions (also HVDLITE_SSH)
    CLUSTER_DISK    a folder with different contents on each host; all other files are shared

It needs root, iproute2, util-linux and OpenSSH's server; ``missing()`` tells what is missing.
"""

import argparse
import contextlib
import ctypes
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Optional

# Host h0 has 10.77.0.1. The namespaces have no other network, so the addresses can't conflict.
NETWORK = "10.77.0"
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)

SSHD_CONFIG = """\
HostKey {state}/host_key
AuthorizedKeysFile {state}/user_key.pub
PidFile none
PermitRootLogin yes
StrictModes no
UsePAM no
MaxStartups 100
SetEnv TMPDIR={state}/disk
"""

SSH_CONFIG = """\
Host *
    IdentityFile {state}/user_key
    UserKnownHostsFile {state}/known_hosts
    StrictHostKeyChecking accept-new
    LogLevel ERROR
"""

# The commands that a host runs before its sshd. A host has a separate /proc, so ps shows only the
# host's processes. The shell's startup files are hidden: some take a lock (pyenv does). If a host
# is killed meanwhile, the lock remains, and each later ssh waits a minute for the lock.
BOOT = """\
set -e
exec 2>>{state}/{name}.log
hostname {name}
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs run /run
mkdir /run/sshd
mount -t tmpfs disk {state}/disk
mount --bind {state}/hosts /etc/hosts
for file in ~/.bashrc ~/.zshenv; do [ ! -e $file ] || mount --bind /dev/null $file; done
ip link set lo up
exec {sshd} -D -e -f {state}/sshd_config
"""


def missing(*tools: str) -> Optional[str]:
    """Return what this machine lacks for a cluster with these tools; None if it lacks nothing."""
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    tools = ("ip", "tc", "unshare", "nsenter", "ssh", "ssh-keygen", "sshd", *tools)
    lacks = [tool for tool in tools if not shutil.which(tool, path=_search_path())]
    if lacks:
        return f"not installed: {', '.join(lacks)}"
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "true"],
        capture_output=True,
        text=True,
        env=_environment(),
    )
    return f"no namespaces here: {probe.stderr.strip()}" if probe.returncode else None


def can_filter() -> bool:
    """Return whether :meth:`Cluster.firewall` works on this machine."""
    return bool(shutil.which("iptables", path=_search_path()))


def _search_path() -> str:
    """Return a PATH with the folders of ip, tc and sshd, which an ordinary user's PATH lacks."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _environment() -> Dict[str, str]:
    return {**os.environ, "PATH": _search_path()}


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Cluster:
    """``with Cluster(4) as cluster: cluster.run(["hostname"])`` runs a command on host h0.

    :param rate: the rate of each host's link, as tc writes it ("1gbit"); None: no limit.
    :param burst: how much data an idle link takes at full speed, above its rate.
    """

    def __init__(self, hosts: int = 4, rate: Optional[str] = None, burst: str = "32kb"):
        self.names = [f"h{i}" for i in range(hosts)]
        self.addresses = [f"{NETWORK}.{i + 1}" for i in range(hosts)]
        self.state = Path(tempfile.mkdtemp(prefix="hvdlite-cluster-"))
        self.disk = self.state / "disk"
        self.hostfile = self.state / "hostfile"
        self.ssh = f"ssh -F {self.state}/ssh_config"
        self._rate, self._burst = rate, burst
        self._processes: List[subprocess.Popen] = []
        # process ids: of the first process of the switch, and of the first process of each host
        self._first: List[int] = []
        self._pids: Dict[str, int] = {}
        self._switch = 0  # id of the first process of the emulated network switch

    def __enter__(self) -> "Cluster":
        try:
            self._write_files()
            self._start_switch()
            for name, address in zip(self.names, self.addresses):
                self._start_host(name)
                self._plug_in(name, address)
            self._wait_for_sshd()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End every process of every host; then the kernel removes the namespaces."""
        for pid in self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        # unshare ends once it has reaped its child, the first process of the host
        for process in self._processes:
            process.wait()
        shutil.rmtree(self.state, ignore_errors=True)

    def lose(self, host: str, power: bool = False) -> None:
        """Kill a host. Its kernel closes all connections, unless ``power`` asks for a power cut."""
        if power:
            self.link(host, up=False)
        os.kill(self._pids[host], signal.SIGKILL)

    def restart(self, host: str) -> None:
        """Start a lost host again."""
        # the kernel may take a moment to remove the old link
        old = [*self._on_switch(), "ip", "link", "delete", host]
        subprocess.run(old, stderr=subprocess.DEVNULL, env=_environment())
        self._start_host(host)
        self._plug_in(host, self.addresses[self.names.index(host)])

    def link(self, host: str, up: bool) -> None:
        """Switch a host's link on or off, at the network switch's end of the link."""
        _run([*self._on_switch(), "ip", "link", "set", host, "up" if up else "down"])

    def firewall(self, host: str, only_new: bool = False) -> None:
        """Make a host drop all packets except those of ssh, or only new connections except ssh."""
        for way in ("INPUT", "OUTPUT"):
            rule = ["-A", way, "-o" if way == "OUTPUT" else "-i", "eth0"]
            for side in ("--sport", "--dport"):
                self._iptables(host, [*rule, "-p", "tcp", side, "22", "-j", "ACCEPT"])
            new = ["-p", "tcp", "--syn"] if only_new else []
            self._iptables(host, [*rule, *new, "-j", "DROP"])

    def _iptables(self, host: str, words: List[str]) -> None:
        _run(self.command(["iptables", "-w", *words], host))

    def _on_switch(self) -> List[str]:
        return ["nsenter", "-t", str(self._switch), "-n"]

    def command(self, argv: List[str], host: str = "h0", cwd: Optional[str] = None) -> List[str]:
        """Return the command that runs ``argv`` on a host, by default in the current folder."""
        spaces = ["--net", "--uts", "--mount", "--ipc", "--pid", f"--wd={cwd or os.getcwd()}"]
        return ["nsenter", "-t", str(self._pids[host]), *spaces, "--", *argv]

    def environment(self) -> Dict[str, str]:
        """Return the environment with which a command on a host finds the other hosts."""
        return {
            **_environment(),
            "CLUSTER_HOSTS": str(self.hostfile),
            "CLUSTER_DISK": str(self.disk),
            "CLUSTER_SSH": self.ssh,
            "HVDLITE_SSH": self.ssh,
            # Open MPI names folders after process ids, which may be equal on several hosts.
            "TMPDIR": str(self.disk),
        }

    def run(self, argv: List[str], host: str = "h0", **options) -> subprocess.CompletedProcess:
        """Run a command on a host, with the options of subprocess.run."""
        options.setdefault("env", self.environment())
        return subprocess.run(self.command(argv, host, options.pop("cwd", None)), **options)

    def processes(self, host: str) -> List[str]:
        """Return the command lines of the processes on a host, without its sshd.

        Defunct processes are left out, too: the sshd is the host's init and reaps them late.
        """
        found = self.run(["ps", "-e", "-o", "args="], host, capture_output=True, text=True)
        others = ("sshd", "<defunct>", "ps -e -o")
        return [line for line in found.stdout.splitlines() if not any(o in line for o in others)]

    def clear(self, host: str) -> None:
        """End all processes of a host except its sshd, and remove the files in its /dev/shm."""
        self.run(["sh", "-c", "kill -KILL -1; rm -rf /dev/shm/*"], host, capture_output=True)

    def shared_memory(self, host: str) -> List[str]:
        """Return the files in a host's /dev/shm."""
        return self.run(["ls", "/dev/shm"], host, capture_output=True, text=True).stdout.split()

    def _write_files(self) -> None:
        self.disk.mkdir()
        fields = {"state": self.state}
        (self.state / "sshd_config").write_text(SSHD_CONFIG.format(**fields))
        (self.state / "ssh_config").write_text(SSH_CONFIG.format(**fields))
        lines = [f"{a} {n}" for a, n in zip(self.addresses, self.names)]
        (self.state / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self.hostfile.write_text("".join(f"{name} slots=1\n" for name in self.names))
        for key in ("host_key", "user_key"):
            path = str(self.state / key)
            _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path])

    def _start(self, argv: List[str]) -> int:
        """Start unshare; return the process id of its child, the first in the new namespaces."""
        process = subprocess.Popen(
            argv,
            preexec_fn=_die_with_parent,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # unshare prints an error when its child is killed
        )
        self._processes.append(process)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        pid = int(wait_for(lambda: children.read_text().split(), "a namespace")[0])
        self._first.append(pid)
        return pid

    def _start_switch(self) -> None:
        switch = self._start(["unshare", "--net", "--fork", "--kill-child", "sleep", "infinity"])
        wait_for(lambda: _comm(switch) == "sleep", "the switch")
        self._switch = switch
        _run([*self._on_switch(), "ip", "link", "add", "br0", "type", "bridge"])
        _run([*self._on_switch(), "ip", "link", "set", "br0", "up"])

    def _start_host(self, name: str) -> None:
        sshd = shutil.which("sshd", path=_search_path())
        boot = BOOT.format(name=name, state=self.state, sshd=sshd)
        spaces = ["--net", "--uts", "--mount", "--ipc", "--pid", "--fork", "--kill-child"]
        argv = ["unshare", *spaces, "--mount-proc", "sh", "-c", boot]
        self._pids[name] = self._start(argv)
        try:
            wait_for(lambda: _comm(self._pids[name]) == "sshd", name)
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {(self.state / (name + '.log')).read_text()}") from None

    def _plug_in(self, name: str, address: str) -> None:
        pid = str(self._pids[name])
        on_switch, on_host = self._on_switch(), ["nsenter", "-t", pid, "-n"]
        # the host keeps its MAC address when it is restarted
        card = f"02:00:00:00:00:{int(address.rpartition('.')[2]):02x}"
        peer = ["type", "veth", "peer", "name", "eth0", "address", card, "netns", pid]
        _run([*on_switch, "ip", "link", "add", name, *peer])
        _run([*on_switch, "ip", "link", "set", name, "master", "br0", "up"])
        _run([*on_host, "ip", "address", "add", f"{address}/24", "dev", "eth0"])
        _run([*on_host, "ip", "link", "set", "eth0", "up"])
        if self._rate:
            shape = ["root", "tbf", "rate", self._rate, "burst", self._burst, "limit", "512kb"]
            _run([*on_switch, "tc", "qdisc", "add", "dev", name, *shape])
            _run([*on_host, "tc", "qdisc", "add", "dev", "eth0", *shape])

    def _wait_for_sshd(self) -> None:
        for name in self.names:
            ask = [*shlex.split(self.ssh), name, "true"]
            wait_for(lambda ask=ask: self.run(ask, capture_output=True).returncode == 0, name)


def _run(argv: List[str]) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, env=_environment())
    if done.returncode:
        raise RuntimeError(f"{shlex.join(argv)}: {done.stderr.strip()}")


def _comm(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


@contextlib.contextmanager
def or_skip(hosts: int, *tools: str):
    """Yield a cluster; skip the test if the machine lacks what a cluster needs."""
    import pytest  # cluster.py itself runs without pytest

    lacks = missing(*tools)
    if lacks:
        pytest.skip(f"no emulated hosts: {lacks}")
    with Cluster(hosts) as running:
        yield running


def wait_for(ready, what: str, seconds: float = 60):
    """Call ``ready`` until it returns a true value; return this value."""
    deadline = time.monotonic() + seconds
    while True:
        value = ready()
        if value:
            return value
        if time.monotonic() > deadline:
            raise RuntimeError(f"not up after {seconds} s: {what}")
        time.sleep(0.01)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", help="of each link, as tc writes it: 200mbit, 1gbit")
    parser.add_argument("--burst", default="32kb", help="what an idle link takes at full speed")
    parser.add_argument("command", nargs="+", help="what to run on h0")
    args = parser.parse_args()
    lacks = missing()
    if lacks:
        sys.exit(f"cluster: {lacks}")
    with Cluster(args.hosts, args.rate, args.burst) as cluster:
        return cluster.run(args.command).returncode


if __name__ == "__main__":
    sys.exit(main())
