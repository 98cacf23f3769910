"""The description of a job, which the options make and every backend reads."""

import os
import sys
from typing import Dict, List, NamedTuple, Optional

from hvdlite.machine.hosts import SSH, Host

HOST_TIMEOUT = 60.0  # default in seconds for jobs over MPI; other jobs use that of core/limits.py


class LaunchError(Exception):
    """A job can't be run; the text is one sentence that says what to do."""


def current_folder() -> str:
    """Return the path of the current folder, in which the ranks start."""
    try:
        return os.getcwd()
    except OSError as error:
        raise LaunchError(
            f"the current folder can't be found ({error.strerror}), perhaps it was removed: "
            "change to another folder"
        ) from None


class Job(NamedTuple):
    """One run of a program on many ranks; a tuple, because importing dataclasses takes 8 ms."""

    command: List[str]
    ranks: int  # number of ranks that train, without servers
    launcher: str = "local"  # the name of a backend
    mode: str = "mpi"  # mpi, or ps for MXNet's parameter server
    servers: int = 0
    hosts: List[Host] = []  # empty: this host, or the hosts that the backend gives
    env: Dict[str, str] = {}  # variables for every process
    env_of: Dict[str, Dict[str, str]] = {}  # mode ps: variables for the processes of a role
    sync_dir: Optional[str] = None  # the folder on the hosts that gets a copy of the current folder
    interfaces: List[str] = []
    transport: Optional[str] = None  # tcp: ranks use no MPI
    secret: str = ""  # the key by which ranks without MPI recognize each other
    ssh: SSH = SSH()
    mpi_args: List[str] = []  # the user's options for mpirun
    binding: List[str] = []  # the user's binding options, in place of hvdliterun's
    unbound: bool = False  # True: ranks may run on all cores
    start_timeout: float = 30.0  # seconds in which all ranks must start
    host_timeout: float = HOST_TIMEOUT  # seconds that a host may be silent
    restarts: int = 0  # how often a failed job is started again
    elastic: bool = False  # True: when ranks die, the job goes on and gets replacements
    fewest: int = 1  # the fewest ranks with which the job goes on
    most: int = 0  # replacements join up to this number of ranks; 0: no replacements
    output_dir: Optional[str] = None
    timestamps: bool = False
    summary: bool = False  # True: when the job ends, print why its steps lost time
    metrics: Optional[str] = None  # PORT or ADDRESS:PORT where the launcher serves metrics
    verbose: bool = False
    # Fields for batch backends.
    name: str = "hvdlite"
    queue: Optional[str] = None
    parallel_environment: Optional[str] = None
    batch: bool = False
    image: Optional[str] = None
    arguments: List[str] = []  # hvdliterun's arguments, to call it again inside the batch job

    @property
    def processes(self) -> int:
        """The number of processes that the backend starts; mode ps adds servers and a scheduler."""
        return self.ranks + self.servers + 1 if self.mode == "ps" else self.ranks

    @property
    def agent(self) -> List[str]:
        return [sys.executable, "-m", "hvdlite.launch.agent", "--", *self.command]


class Interrupted(BaseException):
    """A signal asks to end the job."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Outcome(NamedTuple):
    """How the job ended."""

    code: int
    report: List[str]  # lines for the user about a failure
    results: List[Optional[bytes]]  # results of hvdlite.run, by rank
    signal: Optional[int]  # the signal that ended the job
    lost: List[str]  # hosts that have vanished, by the names that the user gave
    refused: bool = False  # True: hvdliterun refused the job before any rank's program ran


class Command(NamedTuple):
    """The command that a backend runs, and for a batch backend the script that it submits."""

    argv: List[str]
    env: Dict[str, str] = {}  # variables in addition to the environment
    script: Optional[str] = None  # the command's standard input
    # True: the command starts agents. False: it only submits a job, and the user sees its output.
    watched: bool = True
    remote: bool = True  # True: agents on other hosts connect to this host
    notes: List[str] = []
    log: Optional[str] = None  # the log that a batch backend writes, with $JOB_ID in its name
    cancel: List[str] = []  # the command that cancels a job; it takes the job's id
