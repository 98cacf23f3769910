"""Does something on every host over ssh, all at once."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterable, List, TypeVar

from hvdlite.launch.job import SSH

AT_ONCE = 32
T = TypeVar("T")


def on_each(function: Callable[[str], T], hosts: Iterable[str]) -> List[T]:
    """Call the function with every host's name, in threads; return the results in order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, hosts))


def ask(
    ssh: SSH, host: str, command: str, stdin: str, timeout: float
) -> subprocess.CompletedProcess:
    """Run a shell command on a host; exit code 255: ssh failed, or there was no answer in time."""
    argv = [*ssh.command(), host, command]
    try:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", f"no answer in {timeout:g} s")


def reason(done: subprocess.CompletedProcess) -> str:
    """Return the last thing that a failed command has said."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"
