"""The command of hvdliterun inside a batch job: the same options, except those for submitting."""

import shlex
import sys
from typing import List

from hvdlite.launch.job import Job

_FOR_OUTSIDE = ("--batch", "--dry-run", "-m", "--module")  # job.command has python -m


def command(job: Job, *more: str) -> List[str]:
    """Return the command that runs this job inside the batch job; ``more`` options win."""
    options = [word for word in job.arguments if word not in _FOR_OUTSIDE]
    return [sys.executable, "-m", "hvdlite.launch", *options, *more, *job.command]


def script(directives: List[str], argv: List[str]) -> str:
    """Return a shell script whose comments are the backend's directives."""
    return "\n".join(["#!/bin/sh", *directives, shlex.join(argv), ""])
