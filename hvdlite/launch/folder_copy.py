"""Copies the current folder to all hosts by rsync."""

import os
import shlex
import shutil
from typing import List, Optional

from hvdlite.launch import remote
from hvdlite.launch.job import Job, LaunchError, current_folder
from hvdlite.machine.hosts import is_here


def rsync(job: Job, host: str) -> List[str]:
    """Return the command that copies the current folder to a host."""
    assert job.sync_dir is not None  # without it nothing is copied
    folder = job.sync_dir.rstrip("/") + "/"
    # The remote command first makes the folder's parents, which rsync itself does not make.
    make = f"mkdir -p {shlex.quote(folder)} && rsync"
    argv = ["rsync", "-az"]
    if is_here(host):
        return [*argv, "./", folder]
    argv += [f"--timeout={int(job.host_timeout)}", "--rsync-path", make]
    return [*argv, f"--rsh={shlex.join(job.ssh.command())}", "./", f"{host}:{folder}"]


def copy_folder(job: Job) -> None:
    """Copy the folder to all hosts; LaunchError names the first host that failed."""
    if not shutil.which("rsync"):
        raise LaunchError("--sync-dst-dir needs rsync here: run `apt-get install rsync`")
    for text in remote.on_each(lambda name: _copy_to(job, name), [host.name for host in job.hosts]):
        if text:
            raise LaunchError(text)


def _copy_to(job: Job, host: str) -> Optional[str]:
    argv = rsync(job, host)
    if is_here(host):
        if os.path.realpath(argv[-1]) == current_folder():
            return None
        try:
            os.makedirs(argv[-1], exist_ok=True)
        except OSError as error:
            return f"the folder can't be copied to {host}:{job.sync_dir}: {error.strerror}"
    done = remote.run(argv)
    if done.returncode == 0:
        return None
    if "rsync: command not found" in done.stderr or "rsync: not found" in done.stderr:
        return f"{host} has no rsync, which --sync-dst-dir needs: run `apt-get install rsync` there"
    why = done.stderr.strip().split("\n")[0]
    return f"the folder can't be copied to {host}:{job.sync_dir}: {why}"
