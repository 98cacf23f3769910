"""Submits a job to a batch backend, which starts hvdliterun again on the job's hosts."""

import os
import shlex
import signal
import subprocess
import sys
import time
from typing import List, Optional

from hvdlite.launch.job import Job, LaunchError, Plan

LOOK = 0.2  # seconds between looks at a log that grows


def run(job: Job, plan: Plan) -> int:
    """Submit; return the exit code of the job, or with ``--batch`` of the submission."""
    try:
        if plan.log and not job.batch:
            return _follow(plan)
        # Ctrl-C is for the backend's command, which then ends the job; this process ignores it.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return subprocess.run(plan.argv, input=plan.script, text=True).returncode
    except FileNotFoundError as error:
        raise LaunchError(f"there is no {plan.argv[0]} on this host") from error


def _follow(plan: Plan) -> int:
    """Submit, print the log while it grows, and wait for the end."""
    reader, terminal = os.openpty()  # a pipe would get the job's number only at qsub's end
    process = subprocess.Popen(
        plan.argv, stdin=subprocess.PIPE, stdout=terminal, text=True, preexec_fn=os.setpgrp
    )
    assert process.stdin and plan.script and plan.log  # of every plan that has a log
    process.stdin.write(plan.script)
    process.stdin.close()
    os.close(terminal)
    job_id = _first_line(reader)
    log, done = plan.log.replace("$JOB_ID", job_id), 0
    try:
        while process.poll() is None:
            time.sleep(LOOK)
            done = _print_from(log, done)
    except KeyboardInterrupt:
        subprocess.run([*plan.cancel, job_id])
        return 128 + signal.SIGINT
    _print_from(log, done)
    return process.returncode


def _first_line(reader: int) -> str:
    text = b""
    while not text.endswith(b"\n"):
        try:
            text += os.read(reader, 1)
        except OSError:  # the command has ended and printed nothing
            break
    return text.decode().strip()


def _print_from(log: str, position: int) -> int:
    """Print the log from ``position`` on; return the new position."""
    text: Optional[bytes] = None
    if os.path.exists(log):
        with open(log, "rb") as file:
            file.seek(position)
            text = file.read()
        sys.stdout.write(text.decode(errors="replace"))
        sys.stdout.flush()
    return position + len(text or b"")


_FOR_OUTSIDE = ("--batch", "--dry-run", "-m", "--module")  # job.command has python -m


def command_inside(job: Job, *more: str) -> List[str]:
    """Return the command_inside that runs this job inside the batch job; ``more`` options win."""
    options = [word for word in job.arguments if word not in _FOR_OUTSIDE]
    return [sys.executable, "-m", "hvdlite.launch", *options, *more, *job.command]


def script(directives: List[str], argv: List[str]) -> str:
    """Return a shell script whose comments are the backend's directives."""
    return "\n".join(["#!/bin/sh", *directives, shlex.join(argv), ""])
