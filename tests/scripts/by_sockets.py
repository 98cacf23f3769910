"""A rank of a job by sockets, in C alone: `by_sockets.py WHAT JOB`, for tests/test_by_sockets.py.

It loads hvdlite's library without MPI from its file, so neither hvdlite nor MPI is imported.
"""

import json
import os
import random
import resource
import signal
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location

LIBRARY = os.environ["HVDLITE_TCP_LIBRARY"]
SECONDS = 60.0

spec = spec_from_file_location("_hvdlite_tcp", LIBRARY)
library = module_from_spec(spec)
spec.loader.exec_module(library)
ffi, lib = library.ffi, library.lib
job = json.loads(sys.argv[2])
rank, size = job["rank"], job["size"]


def check(code: int, err) -> None:
    if code:
        sys.exit(f"rank {rank}: {ffi.string(err.text).decode()} (code {code})")


def numbers(values):
    return ffi.new("int[]", list(values))


def init() -> None:
    err = ffi.new("hvd_error *")
    arrays = [numbers(job[name]) for name in ("lowest", "data", "messages")]
    check(lib.hvd_init_sockets(ffi.new("hvd_sockets *", [rank, size, *arrays]), err), err)


def allreduce(name: str, values, group: int = 0):
    """Sum in place; return the error's code and text."""
    err, name_text = ffi.new("hvd_error *"), ffi.new("char[]", name.encode())
    dims = ffi.new("int64_t[1]", [len(values)])
    tensor = ffi.new("hvd_tensor *")
    tensor.name, tensor.kind, tensor.dtype = name_text, lib.HVD_ALLREDUCE, lib.HVD_FLOAT32
    tensor.op, tensor.group, tensor.waited = lib.HVD_SUM, group, 1
    tensor.prescale = tensor.postscale = 1.0
    tensor.ndim, tensor.dims = 1, dims
    setattr(tensor, "in", values)
    tensor.out = values
    handle = lib.hvd_start(tensor, err)
    if handle and not lib.hvd_finish(handle, SECONDS, err):
        sys.exit(f"rank {rank}: no end of {name}")
    if handle:
        lib.hvd_drop(handle)
    return err


def sums(count: int, ranks, group: int = 0) -> None:
    values = ffi.new("float[]", count)
    for i in range(count):
        values[i] = rank + i % 7
    err = allreduce(f"sum.{count}.{len(ranks)}", values, group)
    check(err.code, err)
    expected = [sum(r + i % 7 for r in ranks) for i in range(min(count, 7))]
    for i in range(count):
        if values[i] != expected[i % 7]:
            sys.exit(f"rank {rank}: {count} values, at {i}: {values[i]}, not {expected[i % 7]}")


def end() -> None:
    lib.hvd_leave(b"done")
    if not lib.hvd_wait_end(SECONDS):
        sys.exit(f"rank {rank}: the others do not end")
    lib.hvd_close()


def what_sums() -> None:
    for count in (1, 1000, 40_000, 300_001):
        sums(count, range(size))


def what_groups() -> None:
    """The odd ranks beside all, in reverse order; the world goes on beside them."""
    err, group = ffi.new("hvd_error *"), ffi.new("int *")
    for number, ranks in ((1, range(size - 1, -1, -1)), (2, range(0, size, 2))):
        if rank in ranks:
            check(lib.hvd_group_open_among(numbers(ranks), len(ranks), number, group, err), err)
            for count in (3, 100_000):
                sums(count, ranks, group[0])
                sums(count + number, ranks, group[0])
            lib.hvd_group_leave(group[0], b"done")
            if not lib.hvd_group_wait_end(group[0], SECONDS):
                sys.exit(f"rank {rank}: group {number} does not end")
            lib.hvd_group_close(group[0])
    sums(10, range(size))


def what_death() -> None:
    sums(10, range(size))
    if rank == 1 and os.fork() == 0:  # a child that lives on must not hide the end
        os.close(1)
        os.close(2)
        time.sleep(10)
        os._exit(0)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tell_death(allreduce("after", ffi.new("float[]", 1000)))


def what_death_midway() -> None:
    """While data moves, at a moment that nobody has chosen."""
    if rank == 1:
        signal.setitimer(signal.ITIMER_REAL, 0.05 + 0.2 * random.random())  # SIGALRM ends it
    values = ffi.new("float[]", 300_000)
    while not (err := allreduce("data", values)).code:
        pass
    tell_death(err)


def tell_death(err) -> None:
    print(json.dumps([err.code == lib.HVD_RANK_DEAD, err.blamed[0], ffi.string(err.text).decode()]))
    lib.hvd_close()
    sys.exit(0)


def what_waiting() -> None:
    """CPU seconds while the last rank is late, by less than a look of the watch."""
    sums(10, range(size))
    before = resource.getrusage(resource.RUSAGE_SELF)
    if rank == size - 1:
        time.sleep(1.0)
    sums(11, range(size))
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def what_without_mpi() -> None:
    err = ffi.new("hvd_error *")
    if lib.hvd_init(ffi.NULL, err) != lib.HVD_UNSUPPORTED:
        sys.exit("hvd_init worked without MPI")
    print(ffi.string(err.text).decode())


if sys.argv[1] != "without_mpi":
    init()
globals()[f"what_{sys.argv[1]}"]()
if sys.argv[1] != "without_mpi":
    end()
