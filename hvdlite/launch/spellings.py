"""Options of other launchers: mpirun, horovodrun, srun and torchrun.

hvdliterun applies such an option, or says that the option has no effect, or refuses the option and
says what to use instead. As for mpirun, one dash means the same as two.
"""

import argparse
import shlex
from typing import Dict

from hvdlite import cli

# An option of hvdliterun -> its names in other launchers.
_ALSO = {
    "--hosts": ("--host",),
    "--hostfile": ("--machinefile", "--default-hostfile", "-f"),
    "--nproc-per-node": ("--ppn", "--perhost", "--npernode", "--ntasks-per-node"),
    "--num-proc": ("--ntasks",),
    "--nnodes": ("--nodes",),
    "--network-interfaces": ("--iface",),
    "--restarts": ("--max-restarts", "--max_restarts"),
    "--output-filename": ("--log-dir", "--log_dir"),
}
# What hvdliterun does by default; other values are passed to mpirun.
_OWN_BINDING = {"--bind-to": ("none",), "--map-by": ("slot",), "--rank-by": ("slot",)}
# Horovod's switches for things that hvdlite decides itself. The value is True if the option takes
# an argument.
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
    # Options of mpirun and srun that change nothing, because hvdliterun does the same by default.
    **dict.fromkeys(("--oversubscribe", "--allow-run-as-root", "--tag-output"), False),
    **dict.fromkeys(("--prepend-rank", "--label", "-l"), False),
    **dict.fromkeys((f"--mpi={kind}" for kind in ("pmix", "pmi2", "none")), False),
    # Options of torchrun.
    **dict.fromkeys(("--standalone", "--no-python", "--no_python", "--use-env"), False),
}
_RANKS_MEET = (
    "hvdliterun starts the ranks of all hosts, and tells them their meeting place: give -H"
)
REFUSED = {
    "--jsrun": "use --launcher mpi inside the allocation",
    "-N": "counts a host's ranks in mpirun but hosts in srun: use --nproc-per-node 4, or -H h0,h1",
    **dict.fromkeys(
        ("--wdir", "--wd", "--chdir"), "run hvdliterun in that folder: ranks run there"
    ),
    **dict.fromkeys(("--genvall", "--envall"), "name each variable: --genvlist A,B, or -x A -x B"),
    "--prefix": "set PATH and LD_LIBRARY_PATH on all hosts, or name mpirun by HVDLITE_MPIRUN",
    "--report-bindings": "use --mpi-args=--report-bindings",
    **dict.fromkeys(
        ("--bootstrap", "--rsh"), "use --launcher ssh, and HVDLITE_SSH for the command"
    ),
    "--cpus-per-task": "each rank takes its share of the cores: -x OMP_NUM_THREADS=4 sets threads",
    # Options of torchrun.
    **{
        spelling: _RANKS_MEET
        for name in ("node-rank", "master-addr", "master-port", "rdzv-endpoint", "rdzv-backend")
        for spelling in (f"--{name}", f"--{name.replace('-', '_')}")
    },
    **dict.fromkeys(("--rdzv-id", "--rdzv_id"), _RANKS_MEET),
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


class _Refuse(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        why = REFUSED.get(option_string) or REFUSED[_with_two(option_string)]
        parser.error(f"{option_string}: {why}")


class _Variable(argparse.Action):
    """-env NAME VALUE, of MPICH and Intel MPI."""

    def __call__(self, parser, namespace, values, option_string=None):
        namespace.env = [*namespace.env, "=".join(values)]


class _Variables(argparse.Action):
    def __call__(self, parser, namespace, values, option_string=None):
        namespace.env = [*namespace.env, *values.split(",")]


class _ForMpirun(argparse.Action):
    """-mca NAME VALUE."""

    def __call__(self, parser, namespace, values, option_string=None):
        if values[0] in ("plm_rsh_args", "plm_rsh_agent"):
            parser.error(
                f"{option_string} {values[0]}: use --ssh-port 2222, or set HVDLITE_SSH='ssh ...'"
            )
        options = [_with_two(option_string), *values]
        namespace.mpi_args = f"{namespace.mpi_args} {shlex.join(options)}".strip()


class _Binding(argparse.Action):
    """-bind-to WHERE, -map-by or -rank-by: replaces hvdliterun's own binding options for mpirun."""

    def __call__(self, parser, namespace, value, option_string=None):
        option = _with_two(option_string)
        if value not in _OWN_BINDING[option]:
            arguments = f"{namespace.binding_args} {option} {shlex.quote(value)}"
            namespace.binding_args = arguments.strip()


def _with_two(option: str) -> str:
    return "--" + option.lstrip("-")


def add(parser: cli.Parser) -> None:
    """Add other launchers' options to the parser, which already has hvdliterun's own options."""

    def more(*names: str, **keywords) -> None:
        parser.add_argument(*names, help=argparse.SUPPRESS, **keywords)

    parser.set_defaults(without_effect=[])
    for option, takes_one in WITHOUT_EFFECT.items():
        more(option, action=_NoEffect, nargs=None if takes_one else 0)
    for option in REFUSED:
        more(option, action=_Refuse, nargs="?")
    more("--gloo", dest="transport", action="store_const", const="tcp")
    more("-env", "--genv", dest="env", action=_Variable, nargs=2, default=[])
    more("--genvlist", "--envlist", dest="env", action=_Variables, default=[])
    more("--mca", "--gmca", "--prtemca", dest="mpi_args", action=_ForMpirun, nargs=2, default="")
    more(*_OWN_BINDING, dest="binding_args", action=_Binding, default="")
    parser.no_hints = REFUSED
    actions: Dict[str, argparse.Action] = parser._option_string_actions
    for option, others in _ALSO.items():
        actions.update(dict.fromkeys(others, actions[option]))
    for option in [name for name in actions if name.startswith("--")]:
        actions.setdefault(option[1:], actions[option])
