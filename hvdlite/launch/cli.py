"""``hvdliterun``: runs a command line and returns the exit code."""

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from typing import List, Optional

from hvdlite import __version__
from hvdlite.launch import check, environment, folder_copy, metrics, options, submit
from hvdlite.launch.backends import BACKENDS
from hvdlite.launch.job import Command, Interrupted, Job, LaunchError, Outcome
from hvdlite.launch.job_of_options import choose_ranks, job_of
from hvdlite.launch.output import Console, Files, Output, silence, tell
from hvdlite.launch.watch import Watch

USAGE_ERROR = 2


def main(argv: Optional[List[str]] = None) -> int:
    """Run the command line; for a wrong option or host print one sentence and return 2."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  # None: stdout is closed
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    try:
        code = _main(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        silence(sys.stdout)
        return 128 + signal.SIGPIPE
    except (LaunchError, ValueError) as error:
        tell(*(f"hvdliterun: {line}" for line in str(error).splitlines()))
        return USAGE_ERROR
    except (Interrupted, KeyboardInterrupt) as interrupt:
        return _report_interrupt(getattr(interrupt, "number", signal.SIGINT))


def script() -> None:
    """Run the command line, then skip the interpreter's shutdown, which takes 5 to 10 ms."""
    code = main()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(code)


def _report_interrupt(number: int) -> int:
    """Tell the user which signal has ended the job; return the exit code."""
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    tell(f"hvdliterun: interrupted by {name}: the job was ended")
    return 128 + number


def _main(argv: List[str]) -> int:
    parser = options.parser(list(BACKENDS))
    args = parser.parse_args(argv)
    if args.completion and args.command:
        parser.error("hvdlite completion takes no argument")
    if args.completion:
        print(options.completion(parser))
        return 0
    if args.version:
        print(__version__)
        return 0
    if args.check_build:
        return check.show_build()
    if args.check:
        return check_hosts(job_of(args, argv), args.json)
    why = choose_ranks(args)
    job = job_of(args, argv)
    if why:
        tell(f"hvdliterun: {why}")
    tell(*(f"hvdliterun: {option} has no effect in hvdlite" for option in args.without_effect))
    command = BACKENDS[job.launcher].command(job)
    if args.dry_run:
        show(job, command)
        return 0
    _listen()
    return start(job, command) if command.watched else submit.run(job, command)


def check_hosts(job: Job, as_json: bool) -> int:
    """Print what each host has, and whether ranks there sum correctly; return the exit code."""
    reports = check.ask_all(job, load=True)
    trouble = [report.trouble for report in reports if report.trouble]
    if not as_json:
        print(check.table(reports), flush=True)
    began = time.monotonic()
    tried, misplaced = None, []
    if not trouble and job.launcher in ("local", "ssh"):
        job = check.with_sums(job, reports)
        with open(os.devnull, "w") as null:
            run_command = BACKENDS[job.launcher].command(job)
            # run a task (a function, see hvdlite.run), because a program returns no results
            outcome = check_and_run(job, run_command, Console(null, sys.stderr), task=b"-")
        tried = outcome.code == 0
        trouble += outcome.report
        misplaced = [line.decode() for line in outcome.results if line]
    if as_json:
        found = {"ranks_sum_right": tried, "misplaced": misplaced, "trouble": trouble}
        print(json.dumps({"hosts": [each._asdict() for each in reports], **found}, indent=2))
    elif tried:
        carrier, seconds = job.transport or "mpi", time.monotonic() - began
        print(f"{job.ranks} ranks compute the right sum, transport {carrier}, in {seconds:.1f} s")
        print(*misplaced, sep="\n", end="\n" * bool(misplaced))
    elif tried is False:
        print("\n".join(trouble))
    return int(bool(trouble))


def show(job: Job, command: Command) -> None:
    """Print the command that would run, in a shell's syntax."""
    for who, env in (("every rank", environment.added(job)), (command.argv[0], command.env)):
        for name, value in env.items():
            shown = "..." if name == "HVDLITE_SECRET" else shlex.quote(value)
            print(f"# {who} gets {name}={shown}")
    for note in command.notes:
        print(f"# {note}")
    for host in job.hosts if job.sync_dir else []:
        print(shlex.join(folder_copy.rsync(job, host.name)))
    if command.script:
        print(f"# the input of: {shlex.join(command.argv)}")
        print(command.script, end="")
    else:
        print(shlex.join(command.argv))


def start(job: Job, command: Command) -> int:
    """Check the hosts, copy the folder to them, run the job, and report what failed.

    With ``restarts`` a failed job runs again, from its last checkpoint if there is one. Over ssh
    the next run leaves out lost hosts.
    """
    console = Console(sys.stdout, sys.stderr, job.timestamps)
    for left in range(job.restarts, -1, -1):
        outcome = check_and_run(job, command, console, None, left < job.restarts)
        if outcome.signal not in (None, signal.SIGPIPE):
            return _report_interrupt(outcome.signal)
        tell(*outcome.report)
        if outcome.code == 0 or outcome.refused or outcome.signal is not None:
            break
        if left:
            tell(f"hvdliterun: the job starts again ({left} restarts left)")
        if left and job.launcher == "ssh":
            job = check.without_lost_hosts(job, outcome.lost)
            command = BACKENDS[job.launcher].command(job)
    return outcome.code


def check_and_run(
    job: Job, command: Command, console: Console, task: Optional[bytes] = None, again: bool = False
) -> Outcome:
    """Check hosts, copy the folder, run the job; ``again``: append to the last run's output."""
    check.prepare_host(job)
    if job.launcher == "ssh":
        check.before_start(job)
    if job.sync_dir:
        folder_copy.copy_folder(job)
    if job.verbose:
        show(job, command)
    output = Output(console, Files(job.output_dir, again) if job.output_dir else None)
    watch = Watch(job, command, output, task)
    with metrics.serve(job.metrics, watch.flights.metrics):
        return watch.run()


def _listen() -> None:
    """Make signals that end the job raise Interrupted."""
    # under nohup the job outlives its terminal
    stays = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    for number in (signal.SIGINT, signal.SIGTERM, *(() if stays else (signal.SIGHUP,))):
        signal.signal(number, _interrupt)


def _interrupt(number: int, _) -> None:
    raise Interrupted(number)
