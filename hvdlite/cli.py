"""The command ``hvdlite``, which runs the package's programs, and the parser of their options."""

import argparse
import contextlib
import importlib
import signal
import sys
from typing import Any, Container, Optional, Sequence

from hvdlite import __version__

COMMANDS = {  # name -> module with main(), arguments to put before the user's arguments, help
    "run": ("hvdlite.launch.cli", (), "start a training job on one or many hosts (hvdliterun)"),
    "check": ("hvdlite.launch.cli", ("--check",), "check hosts: versions, cores, networks"),
    "bench": ("hvdlite.bench.cli", (), "measure the collectives (hvdlite-bench)"),
    "top": ("hvdlite.monitor.top", (), "show what each rank of a running job does (hvdlite-top)"),
    "why": ("hvdlite.monitor.why", (), "tell why a job's steps lose time, and what to do"),
    "report": ("hvdlite.monitor.cli", (), "draw the timelines of all ranks (hvdlite-report)"),
    "completion": ("hvdlite.launch.cli", ("--completion",), "print a script for shell completion"),
}


EXAMPLES = """
hvdlite run train.py --epochs 3                     as many ranks as this host has cores for
hvdlite run -n 8 -H server1:4,server2:4 train.py    on two hosts, over ssh
hvdlite why                                         why the running job loses time
eval "$(hvdlite completion)"                        shell completion for bash and zsh
"""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the command named by the first argument; return its exit code."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    lines = [f"  {name:<10} {text}" for name, (_, _, text) in COMMANDS.items()]
    new = parser(
        "hvdlite",
        "Data-parallel training on CPUs, with or without MPI.",
        "\n".join([*lines, EXAMPLES]),
    )
    new.usage = "hvdlite COMMAND ... (hvdlite COMMAND --help)"
    new.add_argument("--version", action="version", version=__version__)
    new.add_argument("command", metavar="COMMAND", help=", ".join(COMMANDS))
    command = new.parse_args(argv[:1]).command
    if command not in COMMANDS:
        import difflib

        like = difflib.get_close_matches(command, COMMANDS, 1)
        hint = f"did you mean {like[0]}?" if like else f"choose from {', '.join(COMMANDS)}"
        new.error(f"unknown command {command}: {hint}")
    module, first, _ = COMMANDS[command]
    try:
        return importlib.import_module(module).main([*first, *argv[1:]])
    except KeyboardInterrupt:  # no traceback: Ctrl-C is the usual end of `hvdlite top`
        return 128 + signal.SIGINT


class Parser(argparse.ArgumentParser):
    """A parser whose error for an unknown option suggests the most similar known option."""

    no_hints: Container[str] = ()  # options that the parser does not suggest

    def _get_option_tuples(self, option_string):
        """Refuse shortened options: argparse would also complete options of the user's command."""
        found = super()._get_option_tuples(option_string)
        # keep an option that is joined with its value, such as -n2
        return [each for each in found if each[-1] is not None]

    def parse_args(self, args=None, namespace=None):
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            import difflib

            known = [name for name in self._option_string_actions if name not in self.no_hints]
            word = unknown[0].partition("=")[0]
            like = difflib.get_close_matches(word.replace("_", "-"), known, 1)
            hint = f"did you mean {like[0]}?" if like else f"see {self.prog} --help"
            kind = "option" if word.startswith("-") else "argument"
            self.error(f"unknown {kind} {word}: {hint}")
        return found


def parser(prog: str, description: str, epilog: str) -> Parser:
    """Return a parser that prints the epilog without reformatting."""
    return Parser(
        prog=prog,
        allow_abbrev=False,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def amount(text: Any) -> float:
    """Convert to a number of at least 0; NaN and infinity are errors."""
    with contextlib.suppress(TypeError, ValueError):
        if 0 <= float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r}: expected a number of at least 0")


def seconds(text: Any) -> float:
    """Convert like :func:`amount`, to at most a year, because Python refuses some longer waits."""
    return min(amount(text), 365 * 86400.0)


def fail(prog: str, why: str) -> int:
    print(f"{prog}: {why}", file=sys.stderr)
    return 2
