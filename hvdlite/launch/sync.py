"""Gives every host a copy of the current folder, with rsync."""

import os
import shlex
import shutil
import subprocess
from typing import List, Optional

from hvdlite.launch import remote
from hvdlite.launch.hosts import is_here
from hvdlite.launch.job import Job, LaunchError


def commands(job: Job) -> List[List[str]]:
    """Return one rsync command a host."""
    names = [host.name for host in job.hosts] or ["localhost"]
    return [_command(job, name) for name in names]


def _folder(job: Job) -> str:
    assert job.sync_dir is not None  # otherwise nothing is copied
    return job.sync_dir


def _command(job: Job, host: str) -> List[str]:
    folder = _folder(job).rstrip("/") + "/"
    # The remote side makes the folder's parents first, which rsync itself does not.
    make = f"mkdir -p {shlex.quote(folder)} && rsync"
    argv = ["rsync", "-az", "--rsync-path", make]
    if is_here(host):
        return [*argv[:2], "./", folder]
    return [*argv, f"--rsh={shlex.join(job.ssh.command())}", "./", f"{host}:{folder}"]


def run(job: Job) -> None:
    """Copy the folder to all hosts; LaunchError names the first host that failed."""
    if not shutil.which("rsync"):
        raise LaunchError("--sync-dst-dir needs rsync here: run `apt-get install rsync`")
    names = [host.name for host in job.hosts] or ["localhost"]
    for text in remote.on_each(lambda name: _copy(job, name), names):
        if text:
            raise LaunchError(text)


def _copy(job: Job, host: str) -> Optional[str]:
    if is_here(host):
        if os.path.realpath(_folder(job)) == os.getcwd():
            return None
        os.makedirs(_folder(job), exist_ok=True)
    done = subprocess.run(_command(job, host), capture_output=True, text=True)
    if done.returncode == 0:
        return None
    if "rsync: command not found" in done.stderr or "rsync: not found" in done.stderr:
        return f"{host} has no rsync, which --sync-dst-dir needs: run `apt-get install rsync` there"
    return f"{host} cannot be given a copy in {job.sync_dir}: {_first_line(done.stderr)}"


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]
