"""Submits a job to a batch backend, which starts hvdliterun again on the job's hosts."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Any, List

from hvdlite.launch.job import Command, Interrupted, Job, LaunchError

LOOK = 0.2  # seconds between two readings of the growing log


def run(job: Job, command: Command) -> int:
    """Submit the batch job; return the job's exit code, or with ``--batch`` the submission's."""
    code = _follow(command) if command.log and not job.batch else _wait(command)
    return code if code >= 0 else 128 - code


def _start(command: Command, **options: Any) -> subprocess.Popen:
    stdin = None if command.script is None else subprocess.PIPE
    try:
        process = subprocess.Popen(command.argv, stdin=stdin, text=True, **options)
    except OSError as error:
        raise LaunchError(f"cannot run {command.argv[0]}: {error.strerror}") from error
    if process.stdin:
        # A broken pipe means that the command has ended; the command's own output says why.
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(command.script or "")
    return process


def _wait(command: Command) -> int:
    """Wait for the backend's command, which ends the job when it gets a signal."""
    process = _start(command)
    while True:
        try:
            return process.wait()
        except Interrupted as interrupt:
            # Ctrl-C in the terminal has reached the command, too
            if interrupt.number != signal.SIGINT:
                process.send_signal(interrupt.number)
                process.wait()
                raise


def _follow(command: Command) -> int:
    """Submit the batch job, print its log while the log grows, and wait for the job's end."""
    assert command.log
    # a terminal, because qsub writes the job's number into a pipe only at the end of the job
    reader, terminal = os.openpty()
    process, job_id, done = _start(command, stdout=terminal, preexec_fn=os.setpgrp), "", 0
    os.close(terminal)
    try:
        job_id = _first_line(reader)
        log = command.log.replace("$JOB_ID", job_id)
        while process.poll() is None:
            time.sleep(LOOK)
            done = _print_from(log, done)
    except Interrupted:
        process.terminate()  # the command only waits, or has not submitted the job yet
        if job_id:
            subprocess.run([*command.cancel, job_id])
        raise
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
    with contextlib.suppress(FileNotFoundError), open(log, "rb") as file:
        file.seek(position)
        text = file.read()
        # as bytes, because a character may have been written only in part
        sys.stdout.buffer.write(text)
        sys.stdout.flush()
        position += len(text)
    return position


# options that hvdliterun does not get inside the batch job; job.command already has python -m
_FOR_OUTSIDE = ("--batch", "--dry-run", "-m", "--module")


def command_inside(job: Job, *more: str) -> List[str]:
    """Return the command that runs this job inside the batch job; ``more`` overrides options."""
    options = [word for word in job.arguments if word not in _FOR_OUTSIDE]
    return [sys.executable, "-m", "hvdlite.launch", *options, *more, *job.command]


def script(directives: List[str], argv: List[str]) -> str:
    """Return a shell script whose comments are the backend's directives."""
    return "\n".join(["#!/bin/sh", *directives, shlex.join(argv), ""])
