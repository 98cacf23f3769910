"""Runs commands on all hosts in parallel over ssh, and copies the current folder there by rsync."""

import os
import shlex
import shutil
import subprocess
import time
from typing import Callable, Iterable, List, Optional, Set, TypeVar

from hvdlite.core.module_state import ModuleState
from hvdlite.launch.job import Job, LaunchError, current_folder
from hvdlite.launch.output import tell
from hvdlite.machine.hosts import SSH, is_here

AT_ONCE = 32  # chosen; each host that is asked at the same time needs a thread and an ssh process
TELL_SECONDS = 3.0  # seconds between two lines about hosts that have not answered
T = TypeVar("T")


class _Commands(ModuleState):
    def begin(self) -> None:
        self.running: Set[subprocess.Popen] = set()  # commands that threads of on_each run


_commands = _Commands()


def on_each(function: Callable[[str], T], hosts: Iterable[str]) -> List[T]:
    """Call the function with each host's name, in threads; return the results in order.

    Every TELL_SECONDS, print how many hosts have answered, and name some that have not. If a
    signal's handler raises here, kill the commands that the threads run.
    """
    # Imported here, because it takes 3 ms and most jobs are on one host.
    from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

    pool = ThreadPoolExecutor(AT_ONCE)
    asked = {pool.submit(function, name): name for name in hosts}
    missing, tell_at = set(asked), time.monotonic() + TELL_SECONDS
    try:
        while missing:
            missing = wait(missing, tell_at - time.monotonic(), FIRST_COMPLETED).not_done
            if missing and time.monotonic() >= tell_at:
                tell_at = time.monotonic() + TELL_SECONDS
                names = sorted(asked[each] for each in missing)
                few = ", ".join(names[:4]) + (", ..." if names[4:] else "")
                text = f"hvdlite: {len(asked) - len(names)} of {len(asked)} hosts have answered"
                tell(f"{text}; waiting for {few}")
        return [each.result() for each in asked]
    finally:
        for each in missing:
            each.cancel()
        for process in list(_commands.running) if missing else ():
            process.kill()
        pool.shutdown(wait=not missing)


def ask(
    ssh: SSH, host: str, command: str, stdin: str, timeout: float
) -> subprocess.CompletedProcess:
    """Run a shell command on a host; exit code 255 means that ssh failed or timed out."""
    argv = [*ssh.command(), host, command]
    try:
        return _run(argv, stdin, timeout)
    except OSError as error:
        return subprocess.CompletedProcess(argv, 255, "", f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", f"no answer in {timeout:g} s")


def _run(
    argv: List[str], stdin: Optional[str] = None, timeout: Optional[float] = None
) -> subprocess.CompletedProcess:
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    # errors="replace", because a banner of sshd may have any encoding.
    with subprocess.Popen(argv, errors="replace", **pipes) as process:  # type: ignore[call-overload]
        _commands.running.add(process)
        try:
            out, err = process.communicate(stdin, timeout)
        except BaseException:
            process.kill()
            raise
        finally:
            _commands.running.discard(process)
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def reason(done: subprocess.CompletedProcess) -> str:
    """Return the last line that a failed command printed to stderr."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"


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
    for text in on_each(lambda name: _copy_to(job, name), [host.name for host in job.hosts]):
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
    done = _run(argv)
    if done.returncode == 0:
        return None
    if "rsync: command not found" in done.stderr or "rsync: not found" in done.stderr:
        return f"{host} has no rsync, which --sync-dst-dir needs: run `apt-get install rsync` there"
    why = done.stderr.strip().split("\n")[0]
    return f"the folder can't be copied to {host}:{job.sync_dir}: {why}"
