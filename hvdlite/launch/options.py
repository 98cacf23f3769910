"""The command line: the options of MXNet's launch.py and of horovodrun, in one parser."""

import argparse
import difflib
from typing import List, NamedTuple, Optional

from hvdlite.launch.config import ConfigAction
from hvdlite.lifecycle.variables import RESETS

USAGE = "hvdliterun [-n N] [-H HOSTS] [--launcher BACKEND] [option ...] command ..."
EPILOG = """\
hvdliterun -n 2 python train.py                        two ranks on this host
hvdliterun -n 8 -H server1:4,server2:4 python train.py  over ssh
hvdliterun -n 2 -s 2 python train.py                   MXNet's own parameter server
hvdliterun --check -H hosts                            what every host has
"""


class Tuning(NamedTuple):
    """An option of horovodrun that becomes a variable of every rank."""

    option: str
    variable: str
    kind: type
    help: str
    factor: int = 1
    constant: Optional[str] = None  # the value that a plain flag stands for

    @property
    def metavar(self) -> str:
        return "TEXT" if self.kind is str else "N"


TUNING = (
    Tuning(
        "--fusion-threshold-mb",
        "HVDLITE_FUSION_THRESHOLD",
        float,
        "the largest batch of fused tensors, in MiB",
        1 << 20,
    ),
    Tuning(
        "--cache-capacity", "HVDLITE_CACHE_CAPACITY", int, "how many tensors the ranks remember"
    ),
    Tuning(
        "--disable-cache",
        "HVDLITE_CACHE_CAPACITY",
        int,
        "the same as --cache-capacity 0",
        constant="0",
    ),
    Tuning(
        "--timeline-filename",
        "HVDLITE_TIMELINE",
        str,
        "write a timeline of all operations to this file",
    ),
    Tuning(
        "--stall-check-warning-time-seconds",
        "HVDLITE_STALL_CHECK_TIME_SECONDS",
        float,
        "report a tensor that has waited so long, and the ranks that it waits for (seconds)",
    ),
    Tuning(
        "--stall-check-shutdown-time-seconds",
        "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS",
        float,
        "fail a tensor that has waited so long (seconds)",
    ),
    Tuning("--reset-limit", RESETS, int, "end an elastic job when its ranks have died more often"),
    Tuning(
        "--no-stall-check",
        "HVDLITE_STALL_CHECK_TIME_SECONDS",
        float,
        "never report a tensor that waits",
        constant="0",
    ),
    Tuning("--log-level", "HVDLITE_LOG_LEVEL", str, "trace, debug, info, warning, error or fatal"),
)

# Horovod's switches for things that hvdlite decides itself; the second value: takes an argument.
WITHOUT_EFFECT = {
    **dict.fromkeys(("--mpi", "--tcp", "--mpi-threads-disable", "--autotune"), False),
    **dict.fromkeys(("--timeline-mark-cycles", "--no-timeline-mark-cycles"), False),
    **dict.fromkeys(("--hierarchical-allreduce", "--no-hierarchical-allreduce"), False),
    **dict.fromkeys(("--hierarchical-allgather", "--no-hierarchical-allgather"), False),
    **dict.fromkeys(("--torus-allreduce", "--no-torus-allreduce"), False),
    **dict.fromkeys(("--stall-check", "--log-with-timestamp", "--log-without-timestamp"), False),
    **dict.fromkeys(("--cycle-time-ms", "--num-nccl-streams", "--thread-affinity"), True),
    **dict.fromkeys(("--gloo-timeout-seconds", "--autotune-log-file"), True),
    **dict.fromkeys(("--autotune-warmup-samples", "--autotune-steps-per-sample"), True),
    **dict.fromkeys(("--autotune-bayes-opt-max-samples",), True),
    **dict.fromkeys(("--autotune-gaussian-process-noise",), True),
    **dict.fromkeys(("--oversubscribe", "--allow-run-as-root"), False),  # mpirun's
}
_RANKS_MEET = "hvdliterun starts the ranks of all hosts, and tells them where to meet: give -H"
REFUSED = {
    "--gloo": "hvdlite runs over MPI alone",
    "--jsrun": "use --launcher mpi inside the allocation",
    "--bind-to": "use --binding-args='--bind-to ...'",
    "--mca": "use --mpi-args='--mca ...'",
    **{  # torchrun's
        spelling: _RANKS_MEET
        for name in ("node-rank", "master-addr", "master-port", "rdzv-endpoint", "rdzv-backend")
        for spelling in (f"--{name}", f"--{name.replace('-', '_')}")
    },
    **dict.fromkeys(
        (
            *("--host-discovery-script", "--slots-per-host", "--elastic-timeout"),
            *("--blacklist-cooldown-range",),
        ),
        "elastic jobs stay on their hosts: --elastic, --min-np, --max-np (docs/elastic.md)",
    ),
}


class _NoEffect(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        namespace.without_effect = [*namespace.without_effect, option_string]


class _Parser(argparse.ArgumentParser):
    """Names, for an unknown option, the known one that is most like it."""

    def parse_args(self, args=None, namespace=None):
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [name for name in self._option_string_actions if name not in REFUSED]
            word = unknown[0].partition("=")[0]
            like = difflib.get_close_matches(word.replace("_", "-"), known, 1)
            hint = f"did you mean {like[0]}?" if like else "see hvdliterun --help"
            self.error(f"unknown option {word}: {hint}")
        return found


class _Refuse(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"{option_string}: {REFUSED[option_string]}")


def parser(launchers: List[str]) -> argparse.ArgumentParser:
    """Return the parser; all words before the command are options."""
    new = _Parser(
        prog="hvdliterun",
        usage=USAGE,
        description="Start a training job on one or many hosts.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    for add in (_add_job, _add_elastic, _add_hosts, _add_ps, _add_output, _add_mpi):
        add(new)
    for add in (_add_batch, _add_questions):
        add(new)
    new.add_argument(
        "--launcher",
        choices=launchers,
        help="the backend that starts the ranks; the command for yarn and the manifest for k8s "
        "are generated, and have never been run on a cluster",
    )
    _add_tuning(new.add_argument_group("tuning, as in horovodrun"))
    new.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return new


def _add_job(new: argparse.ArgumentParser) -> None:
    names = ("-n", "-np", "--np", "--num-proc", "--num-workers")
    new.add_argument(
        "--as-horovod",
        action="store_true",
        help="let `import horovod` find hvdlite in the ranks",
    )
    new.add_argument(
        *names,
        dest="workers",
        type=int,
        metavar="N",
        help="ranks to start (default: all slots of the hosts, else 1)",
    )
    new.add_argument(
        *("--nproc-per-node", "--nproc_per_node"),
        dest="ranks_per_host",
        type=int,
        metavar="N",
        help="ranks to start on each host, as in torchrun",
    )
    new.add_argument("--nnodes", type=int, metavar="N", help="the number of hosts, to compare")
    new.add_argument(
        *("-m", "--module"),
        action="store_true",
        help="the command is a Python module and its arguments",
    )
    new.add_argument(
        *("--env", "-x"),
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="a variable for every rank; without a value, your own",
    )
    new.add_argument(
        "--config-file",
        action=ConfigAction,
        metavar="FILE",
        help="read options from a YAML file like horovodrun's",
    )
    new.add_argument(
        *("--start-timeout",),
        type=float,
        default=30,
        metavar="SECONDS",
        help="fail if a rank has not started by then (default: 30)",
    )
    new.add_argument(
        *("--host-timeout",),
        type=float,
        default=60,
        metavar="SECONDS",
        help="give a host up that has answered nothing for so long (default: 60)",
    )
    new.add_argument(
        "--restarts",
        type=int,
        default=0,
        metavar="N",
        help="start a failed job again, at most N times (default: 0)",
    )
    new.add_argument(
        "--sync-dst-dir",
        metavar="DIR",
        help="copy the current folder there on all hosts, with rsync",
    )


def _add_elastic(new: argparse.ArgumentParser) -> None:
    group = new.add_argument_group("elastic training")
    group.add_argument(
        "--elastic",
        action="store_true",
        help="when a rank dies, the others go on, and a new one takes its place (Open MPI 5)",
    )
    for names, what in (
        (("--min-np", "--min-num-proc"), "end the job when fewer ranks are left (default: 1)"),
        (("--max-np", "--max-num-proc"), "new ranks come up to so many in all (default: -n)"),
    ):
        group.add_argument(
            *names, type=int, metavar="N", dest=names[0][2:].replace("-", "_"), help=what
        )


def _add_hosts(new: argparse.ArgumentParser) -> None:
    new.add_argument("-H", "--hosts", metavar="HOSTS", help="a host file, or server1:4,server2:4")
    new.add_argument("-hostfile", "--hostfile", "--host-file", metavar="FILE", help="a host file")
    new.add_argument(
        "-p", "--ssh-port", type=int, metavar="PORT", help="the port of sshd on the hosts"
    )
    new.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", help="a file with ssh's private key"
    )
    new.add_argument(
        *("--network-interfaces", "--network-interface"),
        dest="interfaces",
        metavar="NAMES",
        help="the networks that ranks may use: eth0,eth1 or 10.1.0.0/16",
    )


def _add_ps(new: argparse.ArgumentParser) -> None:
    group = new.add_argument_group("MXNet's parameter server")
    group.add_argument(
        "--mode",
        choices=["mpi", "ps"],
        help="who adds gradients up: ranks or servers (default: ps if -s is given, else mpi)",
    )
    group.add_argument(
        *("-s", "--num-servers"),
        dest="servers",
        type=int,
        metavar="N",
        help="servers, beside the ranks of -n, which are its workers (default: none in mode mpi, "
        "as many as workers in mode ps)",
    )
    for kind in ("worker", "server"):
        group.add_argument(
            f"--env-{kind}",
            action="append",
            default=[],
            metavar="NAME:VALUE",
            help=f"a variable for every {kind}",
        )
    group.add_argument("--p3", action="store_true", help="use its priority-based transport")


def _add_output(new: argparse.ArgumentParser) -> None:
    new.add_argument(
        *("--output-filename",),
        metavar="DIR",
        help="write what each rank prints to files in this folder, not to the screen",
    )
    new.add_argument(
        *("--prefix-output-with-timestamp",),
        action="store_true",
        help="print the time before each line, beside the rank",
    )
    new.add_argument("--verbose", action="store_true", help="say what is run")
    new.add_argument("--dry-run", action="store_true", help="print what would be run")


def _add_mpi(new: argparse.ArgumentParser) -> None:
    new.add_argument(
        "--mpi-args", default="", metavar="ARGS", help="more options for mpirun, quoted as one word"
    )
    new.add_argument(
        "--binding-args",
        default="",
        metavar="ARGS",
        help="options for mpirun in place of --bind-to none and the like",
    )


def _add_batch(new: argparse.ArgumentParser) -> None:
    group = new.add_argument_group("batch systems")
    group.add_argument("--batch", action="store_true", help="submit, and do not wait (slurm, sge)")
    group.add_argument("--jobname", default="hvdlite", metavar="NAME", help="default: hvdlite")
    group.add_argument("--queue", metavar="NAME", help="queue or partition")
    group.add_argument("--pe", metavar="NAME", help="parallel environment of Grid Engine")
    group.add_argument("--image", metavar="NAME", help="container image for k8s")


def _add_questions(new: argparse.ArgumentParser) -> None:
    new.add_argument("--check", action="store_true", help="print what every host has")
    new.add_argument("-cb", "--check-build", action="store_true", help="print what this build has")
    new.add_argument("-v", "--version", action="store_true", help="print hvdlite's version")


def _add_tuning(group) -> None:
    for row in TUNING:
        if row.constant is None:
            group.add_argument(row.option, type=row.kind, metavar=row.metavar, help=row.help)
        else:
            group.add_argument(row.option, action="store_true", help=row.help)
    group.set_defaults(without_effect=[])
    for option, takes_one in WITHOUT_EFFECT.items():
        group.add_argument(
            option, action=_NoEffect, nargs=None if takes_one else 0, help=argparse.SUPPRESS
        )
    for option in REFUSED:
        group.add_argument(option, action=_Refuse, nargs="?", help=argparse.SUPPRESS)
