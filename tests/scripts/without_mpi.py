"""What ranks do that MPI may or may not have started; the first argument names it."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from jobs import report

import hvdlite as hvd
import hvdlite.numpy as hnp

how = sys.argv[1]
own = os.environ.get("RANK")
if how == "raises_before" and own == "1":
    raise RuntimeError("no data here")
if how == "ends_before" and own == "1":
    hvd.is_initialized()
    sys.exit()
hvd.init()
rank, size = hvd.rank(), hvd.size()


def results() -> list:
    """Of all kinds of collectives, from small ones to those that take several segments."""
    found = []
    for count in (1, 1000, 300_000):
        values = np.random.RandomState(rank).randn(count)
        for dtype in (np.float32, np.float64, np.float16, np.int32):
            x = (100 * values).astype(dtype)
            name = f"{np.dtype(dtype)}.{count}"
            found += [hnp.allreduce(x, name=f"sum.{name}", op=hvd.Sum)]
            found += [hnp.allgather(x[: rank + 1], name=f"gather.{name}")]
            found += [hnp.broadcast(x, size - 1, name=f"broadcast.{name}")]
        found += hnp.grouped_allreduce([values, values[: count // 3]], name=f"group.{count}")
        found += [hnp.allreduce(values, name=f"mean.{count}")]
        found += [hnp.alltoall(np.tile(values, (size, 1)), name=f"all.{count}")]
    return found


def bits():
    """All results as one digest; what this process has loaded and opened."""
    text = b"".join(np.ascontiguousarray(each).tobytes() for each in results())
    own = Path("/proc/self")
    tables = [(own / "net" / name).read_text().splitlines() for name in ("tcp", "tcp6")]
    lines = [line.split() for table in tables for line in table]
    listening = {words[9] for words in lines if words[3] == "0A"}
    opened = {os.readlink(fd)[8:-1] for fd in (own / "fd").iterdir() if fd.is_symlink()}
    report(
        rank,
        digest=hashlib.sha256(text).hexdigest(),
        enabled=hvd.mpi_enabled(),
        mpi="libmpi" in (own / "maps").read_text() or bool(sys.modules.get("mpi4py")),
        listens=bool(listening & opened),
        helpers=sum("hvdlite-help" in each.read_text() for each in own.glob("task/*/comm")),
        where=[hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size()],
    )


def sets():
    """Process sets that overlap, objects, and the same again in a second and third job."""
    found = []
    for _ in range(3):
        some = [hvd.add_process_set(ranks) for ranks in ([0, 2], [2, 1], [1])]
        mine = [s for s in some if s.included()]
        x = np.array([float(rank + 1)])
        found.append([hnp.allreduce(x, op=hvd.Sum, process_set=s)[0] for s in mine])
        hvd.remove_process_set(some[1])
        found.append(hvd.allgather_object(rank))
        hvd.shutdown()
        hvd.init()
    report(rank, found=found)


def raises():
    """Rank 1 does, or exits; the others wait for it."""
    if rank == 1:
        sys.exit(int(sys.argv[2])) if sys.argv[2:] else next(iter([]))
    hnp.allreduce(np.ones(1), name="it does not come")


def killed(midway: bool = False):
    """Rank 1 is, which has a child that lives on; midway: while data moves, some time."""
    hnp.allreduce(np.ones(1), name="first")
    begun = time.monotonic()
    if rank == 1 and midway:
        signal.setitimer(signal.ITIMER_REAL, 0.05 + 0.2 * random.random())  # SIGALRM ends it
    elif rank == 1:
        subprocess.Popen(["sleep", "10"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while midway:
            hnp.allreduce(np.ones(300_000), name="data")
        hnp.allreduce(np.ones(1), name="it does not come")
    except hvd.RankFailedError as error:
        report(rank, blamed=list(error.ranks), seconds=time.monotonic() - begun)
        raise


def killed_midway():
    killed(midway=True)


def waits():
    """Until a signal comes; the line says that it may."""
    hnp.allreduce(np.ones(1), name="first")
    print("READY\n", end="", flush=True)  # in one write: ranks share the pipe
    hnp.allreduce(np.ones(1), name=f"only rank {rank}")


def forks():
    """The child ends by itself, keeps no connection, and can't join."""
    child = os.fork()
    if child == 0:
        try:
            hvd.init()
            hvd.shutdown()
        except hvd.HvdliteError as error:
            print("REFUSED", error, flush=True)
        sys.exit(3)
    code = os.WEXITSTATUS(os.waitpid(child, 0)[1])
    report(rank, code=code, total=hnp.allreduce(np.ones(1), op=hvd.Sum)[0])


def needs_mpi():
    hvd.shutdown()
    try:
        hvd.init([0])
    except ValueError as error:
        report(rank, told=str(error))


def stopped():
    """Rank 1 is, until the test continues it; then the test cuts the link for a while."""
    hnp.allreduce(np.ones(1), name="first")
    if rank == 1:
        print("READY", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    until = time.monotonic() + 2.5
    while hnp.allreduce(np.array([float(rank or time.monotonic() < until)]), op=hvd.Min)[0]:
        time.sleep(0.01)
    report(rank)


def raises_before():
    pass


ends_before = raises_before
globals()[how]()
