"""Makes the job that hvdliterun's options describe; refuses options that contradict each other."""

import os
import shlex
import shutil
import sys
from typing import Any, Dict, List

from hvdlite.core import limits, member
from hvdlite.launch import channel, environment, listener, metrics, mpirun, options, sizing
from hvdlite.launch.backends import BACKENDS, default
from hvdlite.launch.job import HOST_TIMEOUT, Job, current_folder
from hvdlite.launch.output import tell
from hvdlite.machine import hosts


def choose_ranks(args) -> str:
    """If the user names neither ranks nor hosts, choose the ranks by this machine's cores.

    Return a sentence about the choice; empty: the user has chosen.
    """
    named = (args.ranks, args.ranks_per_host, args.hosts, args.hostfile, args.max_np)
    if any(each is not None for each in named) or args.elastic or args.mode or args.servers:
        return ""
    if (args.launcher or default(False)) != "local" or not args.command:
        return ""
    own = {**os.environ, **environment.parse_assignments(args.env, "--env")}.get("OMP_NUM_THREADS")
    args.ranks, threads, why = sizing.of_host(own)
    if own is None:
        args.env.append(f"OMP_NUM_THREADS={threads}")
    return why


def job_of(args, argv: List[str]) -> Job:
    """Return the job that the options describe. An option sets the field of the same name."""
    current_folder()  # raises if the ranks could not start there
    job_hosts = _hosts(args)
    launcher = args.launcher or default(bool(job_hosts))
    elastic = options.elastic(args, launcher)
    mode = args.mode or ("ps" if args.servers else "mpi")
    ranks = _number_of_ranks(args, job_hosts)
    servers = ranks if args.servers is None else args.servers
    env = {**options.variables(args), **environment.parse_assignments(args.env, "--env")}
    of_servers = {**os.environ, **env}.get("DMLC_INTERFACE", "") if mode == "ps" else ""
    networks = args.interfaces or of_servers
    fields: Dict[str, Any] = {
        "command": _command(args.command[args.command[:1] == ["--"] :], args.module),
        "ranks": ranks,
        "launcher": launcher,
        "mode": mode,
        "servers": servers if mode == "ps" else 0,
        "hosts": job_hosts,
        "env": env,
        "env_of": {
            "worker": environment.parse_assignments(args.env_worker, "--env-worker"),
            "server": environment.parse_assignments(args.env_server, "--env-server"),
        },
        "host_timeout": HOST_TIMEOUT if args.host_timeout is None else args.host_timeout,
        "sync_dir": args.sync_dst_dir and os.path.abspath(args.sync_dst_dir),
        "interfaces": [name for name in networks.split(",") if name],
        "ssh": hosts.users_ssh(args.ssh_port, args.ssh_identity_file),
        "mpi_args": shlex.split(args.mpi_args),
        "binding": shlex.split(args.binding_args),
        "elastic": elastic,
        "fewest": 1 if args.min_np is None else args.min_np,
        "most": ranks if args.max_np is None else args.max_np,
        "secret": os.urandom(16).hex(),
        "arguments": argv[: len(argv) - len(args.command)],
    }
    from_options = {name: getattr(args, name) for name in Job._fields if name in args}
    job = Job(**{**from_options, **fields})
    _check_job(job, args)
    job = _without_mpirun(job)
    if job.transport == "tcp" and args.host_timeout is None:
        return job._replace(host_timeout=limits.DEFAULTS[limits.LIMIT])
    if args.host_timeout is not None:  # ranks without MPI use the same limit as agents
        job = job._replace(env={limits.LIMIT: f"{args.host_timeout:g}", **job.env})
    return job


def _without_mpirun(job: Job) -> Job:
    """Return the job, with TCP as transport if there is no mpirun and no option needs mpirun."""
    free = job.transport is None and job.mode == "mpi" and job.launcher in ("local", "ssh")
    if not free or job.mpi_args or job.binding or mpirun.executable():
        return job
    tell("hvdliterun: there is no mpirun: ranks are joined by TCP, without MPI")
    return job._replace(transport="tcp", env={**job.env, member.TRANSPORT: "tcp"})


def _command(argv: List[str], is_module: bool) -> List[str]:
    """Return the command of a rank; this Python runs a module, or a Python file without #!."""
    if is_module:
        return [sys.executable, "-m", *argv]
    if argv and argv[0].endswith(".py") and not _runs_itself(argv[0]):
        return [sys.executable, *argv]
    return argv


def _runs_itself(name: str) -> bool:
    path = shutil.which(name)
    if path is None:
        return False
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def _hosts(args) -> List[hosts.Host]:
    found = _read_hosts(args)
    if args.nnodes not in (None, len(found) or 1):
        raise ValueError(
            f"--nnodes {args.nnodes}: -H names {len(found)} hosts: give -H host1,host2,..."
        )
    if args.ranks_per_host is None:
        return found
    return [host._replace(slots=args.ranks_per_host) for host in found]


def _read_hosts(args) -> List[hosts.Host]:
    if args.hostfile is not None:
        return hosts.read_file(args.hostfile)
    if args.hosts is None:
        return []
    if os.path.isfile(args.hosts) or "/" in args.hosts or ".txt" in args.hosts:
        return hosts.read_file(args.hosts)
    return hosts.parse_list(args.hosts)  # "": no hosts, as from an unset shell variable


def _number_of_ranks(args, job_hosts: List[hosts.Host]) -> int:
    """Return the number of ranks: -n, or the number of slots that the hosts have."""
    if args.ranks_per_host is not None:
        every = args.ranks_per_host * max(len(job_hosts), 1)
        if args.ranks not in (None, every):
            raise ValueError(f"-n {args.ranks} and --nproc-per-node: leave one of them out")
        return every
    if args.ranks is None and job_hosts:
        return sum(host.slots or 1 for host in job_hosts)
    return 1 if args.ranks is None else args.ranks


def _check_job(job: Job, args) -> None:
    if not job.command and not args.check:
        raise ValueError("no program is given: try `hvdliterun -n 2 python train.py`")
    if job.ranks < 1:
        raise ValueError(f"-n {job.ranks}: at least one rank is needed")
    if job.mode == "ps" and job.servers < 1:
        raise ValueError("--mode ps needs servers: give -s 1 or more, or use --mode mpi")
    if job.hosts and not BACKENDS[job.launcher].takes_hosts:
        raise ValueError(f"--launcher {job.launcher} takes no hosts: leave -H out, or use ssh")
    if job.sync_dir and not job.hosts:
        raise ValueError("--sync-dst-dir copies to hosts: give them by -H")
    if job.restarts < 0:
        raise ValueError(f"--restarts {job.restarts}: expected at least 0")
    if args.reset_limit is not None and args.reset_limit < 0:
        raise ValueError(f"--reset-limit {args.reset_limit}: expected at least 0")
    if job.elastic and job.mode == "ps":
        raise ValueError("--elastic: MXNet's parameter server has no elastic training")
    if not 1 <= job.fewest <= job.ranks <= job.most:
        raise ValueError(
            f"--min-np {job.fewest}, -n {job.ranks}, --max-np {job.most}: expected 1 <= "
            "--min-np <= -n <= --max-np"
        )
    least, most = channel.LATE, channel.MOST_SILENCE
    if not least <= job.host_timeout <= most:
        raise ValueError(f"--host-timeout {job.host_timeout:g}: expected {least} to {most} seconds")
    if job.metrics is not None:
        metrics.address(job.metrics)
    unknown = listener.unknown_interface(job.interfaces)
    if unknown:
        raise ValueError(
            f"--network-interfaces (or DMLC_INTERFACE): this host has no interface '{unknown}'"
        )
