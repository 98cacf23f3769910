"""hvdliterun inside what a batch backend has given: the same options, without those for outside."""

import shlex
import sys
from typing import List

from hvdlite.launch.job import Job

_FOR_OUTSIDE = ("--batch", "--dry-run")


def command(job: Job, *more: str) -> List[str]:
    """Return the command that runs this job inside; later options win, so ``more`` comes last."""
    options = [word for word in job.arguments if word not in _FOR_OUTSIDE]
    return [sys.executable, "-m", "hvdlite.launch", *options, *more, *job.command]


def script(directives: List[str], argv: List[str]) -> str:
    """Return a shell script; the directives are its comments for the backend."""
    return "\n".join(["#!/bin/sh", *directives, shlex.join(argv), ""])
