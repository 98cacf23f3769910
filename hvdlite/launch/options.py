"""The command line: the options of MXNet's launch.py and of horovodrun, in one parser.

``--config-file`` reads options in YAML, in horovodrun's layout; the command line wins.
"""

import argparse
import itertools
from typing import Any, Dict, List, NamedTuple, Optional, Sequence

from hvdlite import cli
from hvdlite.cli import amount
from hvdlite.core.agent_protocol import RESETS
from hvdlite.core.member import TRANSPORT, TRANSPORTS
from hvdlite.launch import spellings
from hvdlite.launch.config import ConfigAction

USAGE = "hvdliterun [-n N] [-H HOSTS] [--launcher BACKEND] [option ...] command ..."
EPILOG = """\
hvdliterun train.py --epochs 3                         as many ranks as this host has cores for
hvdliterun -n 2 python train.py                        two ranks on this host
hvdliterun -n 8 -H server1:4,server2:4 python train.py  over ssh
hvdliterun -n 2 -s 2 python train.py                   MXNet's own parameter server
hvdliterun --check -H hosts                            check each host
"""
# shell code of `hvdlite completion`
_COMPLETION = """\
[ -z "$ZSH_VERSION" ] || { autoload -U +X compinit bashcompinit; compinit; bashcompinit; }
_hvdlite() {
    local words='COMMANDS'
    [ "$COMP_CWORD" -eq 1 ] || words=''
    case "$1 ${COMP_WORDS[1]}" in hvdliterun*|'hvdlite run'|'hvdlite check') words='OPTIONS';; esac
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _hvdlite hvdlite hvdliterun"""


class Option(NamedTuple):
    """One option: a row here is all that the parser needs."""

    names: str  # the names, with blanks between
    help: str
    kind: type = bool  # bool: a flag; list: the option may be repeated, each time with a text
    metavar: Optional[str] = None  # by default N or TEXT
    dest: Optional[str] = None  # the parser's attribute; None: named as the first long name
    default: Any = None
    variable: Optional[str] = None  # the environment variable that gives every rank the value
    factor: int = 1  # the variable's value is the option's value times this
    constant: Optional[str] = None  # the variable's value if the flag is given
    choices: Optional[Sequence[str]] = None

    @property
    def attribute(self) -> str:
        """Return the name of the attribute in which the parser stores the option's value."""
        long = next(name for name in self.names.split() if name.startswith("--"))
        return self.dest or long[2:].replace("-", "_")


# The options under each heading of --help.
# fmt: off
OPTIONS = {
    None: (
        Option("--as-horovod", "in the ranks, let `import horovod` find hvdlite",
               variable="HVDLITE_AS_HOROVOD", constant="1"),
        Option("--as-gloo", "in the ranks, let hvdlite replace PyTorch's backend gloo",
               variable="HVDLITE_AS_GLOO", constant="1"),
        Option("-n -np --np --num-proc --num-workers",
               "number of ranks (default: the slots of all hosts; without -H, as many as this "
               "host has cores for)", int, dest="ranks"),
        Option("--nproc-per-node --nproc_per_node", "number of ranks on each host, as in torchrun",
               int, dest="ranks_per_host"),
        Option("--nnodes", "fail unless -H names this number of hosts", int),
        Option("-m --module", "the command is a Python module and its arguments"),
        Option("--env -x", "set a variable in every rank (NAME alone: to the value that it has "
               "here)", list, "NAME[=VALUE]"),
        Option("--start-timeout", "fail if a rank has not started in this time (default: 30)",
               float, "SECONDS", default=30),
        Option("--host-timeout",
               "treat a host as lost after this silence (default: 60; 120 without MPI)", float,
               "SECONDS"),
        Option("--restarts", "restart a failed job at most N times (default: 0)", int, default=0),
        Option("--sync-dst-dir", "copy the current folder to DIR on all hosts, with rsync", str,
               "DIR"),
        Option("-H --hosts", "a host file, or server1:4,server2:4", str, "HOSTS"),
        Option("-hostfile --hostfile --host-file", "a host file", str, "FILE"),
        Option("-p --ssh-port", "the port of sshd on the hosts", int, "PORT"),
        Option("-i --ssh-identity-file", "a file with ssh's private key", str, "FILE"),
        Option("--network-interfaces --network-interface",
               "the networks that ranks may use: eth0,eth1 or 10.1.0.0/16", str, "NAMES",
               "interfaces"),
        Option("--transport", "tcp: use neither MPI nor mpirun (launchers local, ssh, slurm)", str,
               choices=tuple(TRANSPORTS), variable=TRANSPORT),
        Option("--output-filename",
               "write each rank's output to files in this folder, not to the screen", str, "DIR",
               "output_dir"),
        Option("--prefix-output-with-timestamp", "also print the time before each line of a rank",
               dest="timestamps"),
        Option("--summary", "print at the end why the steps lost time, as hvdlite why does"),
        Option("--metrics-port",
               "serve the ranks' metrics for Prometheus at http://127.0.0.1:PORT/metrics", str,
               "[ADDRESS:]PORT", "metrics"),
        Option("--verbose", "print the commands that are run"),
        Option("--dry-run", "print the commands, but run none"),
        Option("--mpi-args", "more options for mpirun, quoted as one word", str, "ARGS",
               default=""),
        Option("--binding-args", "options for mpirun that replace defaults such as --bind-to none",
               str, "ARGS", default=""),
        Option("--no-bind",
               "let each rank run on all cores (default: on a host with several NUMA nodes, each "
               "rank runs on its share of one node's cores)", dest="unbound"),
        Option("--check", "print each host's versions, cores and networks; test a sum of ranks"),
        Option("--json", "with --check, print JSON"),
        Option("-cb --check-build", "print what this installation supports"),
        Option("-v --version", "print hvdlite's version"),
    ),
    "elastic training": (
        Option("--elastic",
               "when a rank dies, the other ranks train on, and a new rank replaces it (implies "
               "--transport tcp)"),
        Option("--min-np --min-num-proc", "end the job if fewer ranks remain (default: 1)", int),
        Option("--max-np --max-num-proc", "maximum number of ranks, with new ranks (default: -n)",
               int),
        Option("--reset-limit", "end an elastic job if ranks have died more than N times", int,
               variable=RESETS),
    ),
    "MXNet's parameter server": (
        Option("--mode",
               "mpi: ranks sum gradients; ps: servers do (default: ps if -s is given, else mpi)",
               str, choices=("mpi", "ps")),
        Option("-s --num-servers",
               "number of servers, in addition to the -n ranks, which are the workers (default: 0 "
               "in mode mpi, as many as workers in mode ps)", int, dest="servers"),
        Option("--env-worker", "a variable for every worker", list, "NAME:VALUE"),
        Option("--env-server", "a variable for every server", list, "NAME:VALUE"),
        Option("--p3", "let MXNet send the gradients of the first layers first",
               variable="DMLC_PS_VAN_TYPE", constant="p3"),
    ),
    "batch systems": (
        Option("--batch", "submit the job and do not wait for its end (slurm, sge)"),
        Option("--jobname", "name of the job (default: hvdlite)", str, "NAME", "name", "hvdlite"),
        Option("--queue", "queue or partition", str, "NAME"),
        Option("--pe", "parallel environment of Grid Engine", str, "NAME", "parallel_environment"),
        Option("--image", "container image for k8s", str, "NAME"),
    ),
    "tuning, as in horovodrun": (
        Option("--fusion-threshold-mb", "the largest batch of fused tensors, in MiB", float,
               variable="HVDLITE_FUSION_THRESHOLD", factor=1 << 20),
        Option("--cache-capacity", "number of tensors whose negotiation the ranks cache", int,
               variable="HVDLITE_CACHE_CAPACITY"),
        Option("--disable-cache", "the same as --cache-capacity 0",
               variable="HVDLITE_CACHE_CAPACITY", constant="0"),
        Option("--timeline-filename", "write a timeline of all operations to this file", str,
               variable="HVDLITE_TIMELINE"),
        Option("--stall-check-warning-time-seconds",
               "report a tensor that has waited for N seconds, and the ranks that it waits for",
               float, variable="HVDLITE_STALL_CHECK_TIME_SECONDS"),
        Option("--stall-check-shutdown-time-seconds", "fail a tensor that has waited for N seconds",
               float, variable="HVDLITE_STALL_SHUTDOWN_TIME_SECONDS"),
        Option("--no-stall-check", "never report tensors that wait",
               variable="HVDLITE_STALL_CHECK_TIME_SECONDS", constant="0"),
        Option("--log-level", "trace, debug, info, warning, error or fatal", str,
               variable="HVDLITE_LOG_LEVEL"),
    ),
}
# fmt: on


def parser(launchers: List[str]) -> argparse.ArgumentParser:
    """Return the parser; all words before the command are options."""
    new = cli.parser("hvdliterun", "Start a training job on one or many hosts.", EPILOG)
    new.usage = USAGE
    for heading, rows in OPTIONS.items():
        group = new.add_argument_group(heading) if heading else new
        for row in rows:
            _add(group, row)
    new.add_argument(
        "--config-file",
        action=ConfigAction,
        metavar="FILE",
        help="read options from a YAML file like horovodrun's",
    )
    new.add_argument(
        "--launcher",
        choices=launchers,
        help="the backend that starts the ranks; yarn and k8s have never been tested on a cluster",
    )
    new.add_argument("--completion", action="store_true", help=argparse.SUPPRESS)
    spellings.add(new)
    new.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return new


def completion(parser: argparse.ArgumentParser) -> str:
    """Return code for bash and zsh that completes commands and the parser's options."""
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    names = " ".join(name for action in shown for name in action.option_strings)
    return _COMPLETION.replace("COMMANDS", " ".join(cli.COMMANDS)).replace("OPTIONS", names)


def _add(group, row: Option) -> None:
    names = row.names.split()
    keywords: Dict[str, Any] = {"dest": row.attribute, "help": row.help}
    if row.kind is bool:
        group.add_argument(*names, action="store_true", **keywords)
    elif row.kind is list:
        group.add_argument(*names, action="append", default=[], metavar=row.metavar, **keywords)
    else:
        metavar = row.metavar or ("TEXT" if row.kind is str else "N")
        kind = amount if row.kind is float else row.kind
        keywords.update(type=kind, default=row.default, choices=row.choices)
        group.add_argument(*names, metavar=None if row.choices else metavar, **keywords)


def elastic(args: argparse.Namespace, launcher: str) -> bool:
    """Return True if the options ask for an elastic job; also set the job's transport to TCP.

    :raises ValueError: another option asks for MPI.
    """
    if not (args.elastic or {args.min_np, args.max_np, args.reset_limit} != {None}):
        return False
    advice = {"mpi": "give -H server1:4,server2:4", "k8s": "run hvdliterun in a pod"}.get(launcher)
    for_mpi = {
        "--transport mpi": args.transport == "mpi",
        "--mpi-args": args.mpi_args,
        "--binding-args": args.binding_args,
        f"--launcher {launcher}": advice,
    }
    found = next((option for option, is_set in for_mpi.items() if is_set), None)
    if found:
        raise ValueError(
            f"{found}: elastic training does not run over MPI: {advice or 'leave this option out'}"
            f", as in `hvdliterun --elastic -n {args.ranks or 2} python train.py`"
        )
    args.transport = "tcp"
    return True


def variables(args: argparse.Namespace) -> Dict[str, str]:
    """Return the environment variables that the options set on every rank."""
    found = {}
    for row in itertools.chain.from_iterable(OPTIONS.values()):
        value = getattr(args, row.attribute)
        if row.variable and value is not None and value is not False:
            if row.factor != 1:
                if value * row.factor >= 2**63:
                    raise ValueError(
                        f"{row.names} {value:g}: expected less than {2**63 // row.factor}"
                    )
                value = int(value * row.factor)
            found[row.variable] = row.constant or str(value)
    return found
