"""Runs commands on all hosts at once, over ssh."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterable, List, TypeVar

from hvdlite.launch.job import SSH

AT_ONCE = 32
T = TypeVar("T")


def on_each(function: Callable[[str], T], hosts: Iterable[str]) -> List[T]:
    """Call the function with each host's name, in threads; return the results in order."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(function, hosts))


def ask(
    ssh: SSH, host: str, command: str, stdin: str, timeout: float
) -> subprocess.CompletedProcess:
    """Run a shell command on a host; exit code 255 means that ssh failed or timed out."""
    argv = [*ssh.command(), host, command]
    try:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", f"no answer in {timeout:g} s")


def reason(done: subprocess.CompletedProcess) -> str:
    """Return the last line that a failed command printed to stderr."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit code {done.returncode}"
