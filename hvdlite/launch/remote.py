"""Runs commands on all hosts in parallel, over ssh."""

import subprocess
import time
from typing import Callable, Iterable, List, Optional, Set, TypeVar

from hvdlite.core.module_state import ModuleState
from hvdlite.launch.output import tell
from hvdlite.machine.hosts import SSH

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
        return run(argv, stdin, timeout)
    except OSError as error:
        return subprocess.CompletedProcess(argv, 255, "", f"{argv[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 255, "", f"no answer in {timeout:g} s")


def run(
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
