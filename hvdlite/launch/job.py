"""The description of a job, which the options make and every backend reads."""

from typing import Dict, List, NamedTuple, Optional

from hvdlite.core.hosts import SSH, Host

HOST_TIMEOUT, HOST_TIMEOUT_WITHOUT_MPI = 60.0, 120.0  # there the ranks wait for so long, too


class LaunchError(Exception):
    """A job can't be run; the text is one sentence that says what to do."""


class Job(NamedTuple):
    """One run of a program on many ranks: a tuple, as dataclasses take 8 ms to import."""

    command: List[str]
    workers: int  # ranks that train
    launcher: str = "local"  # the name of a backend
    mode: str = "mpi"  # or ps: MXNet's parameter server
    servers: int = 0
    hosts: List[Host] = []  # empty: this host, or what the backend gives
    env: Dict[str, str] = {}  # for every process
    env_of: Dict[str, Dict[str, str]] = {}  # for a role of mode ps
    sync_dir: Optional[str] = None  # where the hosts get a copy of the current folder
    interfaces: List[str] = []
    transport: Optional[str] = None  # tcp: without MPI
    secret: str = ""  # of ranks without MPI
    ssh: SSH = SSH()
    mpi_args: List[str] = []  # the user's own, for mpirun
    binding: List[str] = []  # the user's own, in place of ours
    unbound: bool = False  # ranks may run on all cores
    start_timeout: float = 30.0  # seconds until all ranks must be there
    host_timeout: float = HOST_TIMEOUT  # seconds that a host may be silent
    restarts: int = 0  # how often a job that has failed begins again
    elastic: bool = False  # ranks may die and come back
    fewest: int = 1  # ranks that go on without others
    most: int = 0  # ranks that others may join; 0: nobody comes back
    output_dir: Optional[str] = None
    timestamps: bool = False
    summary: bool = False  # tell at the end what the steps lost time to
    metrics: Optional[str] = None  # where to tell it meanwhile: a port, or ADDRESS:PORT
    verbose: bool = False
    # Of batch backends.
    name: str = "hvdlite"
    queue: Optional[str] = None
    parallel_environment: Optional[str] = None
    batch: bool = False
    image: Optional[str] = None
    arguments: List[str] = []  # hvdliterun's own, to call it again inside

    @property
    def processes(self) -> int:
        """The number that the backend starts; mode ps adds servers and a scheduler."""
        return self.workers + self.servers + 1 if self.mode == "ps" else self.workers


class Interrupted(BaseException):
    """A signal asks to end the job."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


class Outcome(NamedTuple):
    """How the job ended."""

    code: int
    report: List[str]  # lines for the user about a failure
    results: List[Optional[bytes]]  # of hvdlite.run, by rank
    signal: Optional[int]  # that ended it
    lost: List[str]  # hosts that have vanished, as the job names them
    refused: bool = False  # no rank's program has run


class Plan(NamedTuple):
    """The command that a backend runs, and for a batch backend the script that it submits."""

    argv: List[str]
    env: Dict[str, str] = {}  # on top of the environment
    script: Optional[str] = None  # given to the command on its standard input
    watched: bool = True  # it starts agents; else it is only submitted, and prints for itself
    remote: bool = True  # agents on other hosts connect to this one
    notes: List[str] = []
    log: Optional[str] = None  # the file that a batch backend writes, $JOB_ID in its name
    cancel: List[str] = []  # the command that takes a job's id
