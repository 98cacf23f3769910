"""How hvdliterun shows errors of ranks, and finds the rank at fault from data, not from texts."""

import pytest
from launching import call, python

from hvdlite.machine import probe

pytestmark = pytest.mark.skipif(not probe.find_program("mpirun"), reason="there is no mpirun")

# A long text for a user's exception that contains texts of hvdlite's own errors.
LINES = """rank 12 left the job (its script has ended) before submitting it
rank 1 (process 5 on host n7) is dead
Error: tensor 'x["]' has waited for 5 s: submitted by rank 0, not by ranks 1-3, 5
MXNetError: tensor '波[' can't complete: rank 0 left the job
rank 0 (process 5 on host n7) has not answered for 3 s: it is stopped, or its host is lost
rank 0 stood still (traceback folded: another rank is to blame)
(process 5 on host ü)"""
BEGIN = f"""
import os, signal, sys, threading, time, numpy as np, mxnet as mx, hvdlite as hvd, hvdlite.mxnet
hvd.init()
rank, text = hvd.rank(), {LINES!r} + "y" * 100_000
hvd.numpy.allreduce(np.ones(1), name="begin")
"""
WAIT = """
if rank == 0:
    hvd.allreduce(mx.nd.ones(1), name="a['\\"]波").asnumpy()
hvd.numpy.allreduce(np.ones(1), name="b")
"""
FOLDED = " (traceback folded: another rank is to blame)"


def of_rank(rank: int, text: str) -> list:
    return [line.split("] ", 1)[1] for line in text.splitlines() if line.startswith(f"[{rank}] ")]


@pytest.mark.parametrize("error", ["RuntimeError", "mx.MXNetError", "hvd.HvdliteError"])
def test_a_users_exception_with_any_text_is_shown_in_full(error):
    done = call("-n", 3, *python(f"{BEGIN}if rank == 1: raise {error}(text)\n{WAIT}"))
    assert done.code == 1, done.err[-3000:]
    own = of_rank(1, done.err)
    assert own[0].startswith("Traceback (most recent call last):")
    *first, last = LINES.splitlines()
    assert own[-len(first) : -1] == first[1:]
    assert own[-1] == last + "y" * 100_000
    assert own[-len(first) - 1].endswith(first[0])
    for rank, name in ((0, "a['\"]波"), (2, "b")):  # MXNet raises on rank 0, hvdlite on rank 2
        (line,) = of_rank(rank, done.err)[-1:]
        assert not any("Traceback" in each for each in of_rank(rank, done.err))
        assert f"tensor 'allreduce.{name}' can't complete: rank 1 left the job" in done.err
        assert line.endswith(FOLDED), line[-300:]
    assert "hvdliterun: rank 1 on " in done.err


def test_an_exception_raised_from_hvdlites_error_is_shown_in_full():
    wait = "try: hvd.numpy.allreduce(np.ones(1), name='b')\nexcept Exception as error: "
    begin = f"{BEGIN}if rank == 1: raise KeyError('x')\n"
    code = f"{begin}{wait}raise RuntimeError(str(error)) from error"
    done = call("-n", 2, *python(code))
    assert FOLDED not in done.err
    assert sum("Traceback" in line for line in of_rank(0, done.err)) == 2
    assert "hvdliterun: rank 1 on " in done.err


@pytest.mark.parametrize(
    "variable, transport",
    [("HVDLITE_GUARD_STEPS", "mpi"), ("HVDLITE_GUARD_STEPS", "tcp"), ("HVDLITE_ELASTIC", "tcp")],
)
def test_the_error_names_a_variable_that_differs_between_ranks(variable, transport):
    """Without the error, ranks would wait for each other in init() or later."""
    rank = "os.environ.get('OMPI_COMM_WORLD_RANK') or os.environ['RANK']"
    code = f"import os; os.environ['{variable}'] = {rank}; import hvdlite as hvd; hvd.init()"
    done = call("-n", 2, "--transport", transport, *python(code))
    assert done.code == 1, done.err
    assert (
        f"{variable} is 0 on rank 0, and 1 on rank 1: set the same value on all ranks" in done.err
    )


@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_a_rank_that_could_not_start_is_the_culprit(transport, tmp_path):
    """Rank 0 opens the timeline; rank 1 ends first, because of rank 0."""
    code = "import time, hvdlite as hvd\ntry: hvd.init()\n"
    code += "except ValueError: time.sleep(0.3); raise"
    where = ("--transport", transport, "--timeline-filename", tmp_path / "no" / "folder")
    done = call("-n", 2, *where, *python(code))
    assert "hvdliterun: rank 0 on " in done.err, done.err
    assert of_rank(1, done.err)[0].endswith(
        f"rank 0 could not start: see the error of that rank{FOLDED}"
    )


@pytest.mark.parametrize("transport", ["mpi", "tcp"])
def test_a_rank_that_fails_and_calls_shutdown_is_the_culprit(transport):
    """Rank 1 leaves the job before its exception ends it, and rank 0 ends first."""
    code = (
        "import time, numpy as np, hvdlite as hvd, hvdlite.numpy\nhvd.init()\nrank = hvd.rank()\n"
    )
    code += "try:\n if rank: raise KeyError('label')\n hvd.numpy.allreduce(np.ones(1), name='x')\n"
    code += "finally: hvd.shutdown(); time.sleep(0.3 * rank)"
    done = call("-n", 2, "--transport", transport, *python(code))
    assert "hvdliterun: rank 1 on " in done.err, done.err
    why = "it called shutdown(); its script raised KeyError: 'label'"
    assert f"rank 1 left the job ({why}) before submitting it{FOLDED}" in done.err


def test_output_files_have_full_tracebacks(tmp_path):
    code = f"{BEGIN}if rank == 1: raise KeyError('x')\n{WAIT}"
    call("-n", 2, "--output-filename", tmp_path, *python(code))
    for rank in range(2):
        text = (tmp_path / f"rank.{rank}" / "stderr").read_text()
        assert "Traceback (most recent call last):" in text
        assert FOLDED not in text


def test_an_exception_in_a_thread_is_shown_and_does_not_end_the_job():
    raises = "    raise RuntimeError('rank 0 left the job')\n"
    thread = "thread = threading.Thread(target=f); thread.start(); thread.join()\n"
    ends = "hvd.numpy.allreduce(np.ones(1))"
    done = call("-n", 2, *python(f"{BEGIN}def f():\n{raises}{thread}{ends}")).passed()
    for rank in range(2):
        assert "RuntimeError: rank 0 left the job" in of_rank(rank, done.err)


def test_report_and_exit_code_name_one_culprit_if_two_ranks_fail():
    dies = "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
    raises = "if rank == 2: raise ValueError('rank 1 left the job')\n"
    done = call("-n", 3, *python(BEGIN + dies + raises + WAIT))
    assert done.code in (1, 137), done.err
    assert f"hvdliterun: rank {1 if done.code == 137 else 2} on " in done.err


def test_a_rank_that_ends_without_output_after_another_rank_failed_is_not_blamed():
    """The library reports the rank's failed collective, so the rank need not print an error."""
    code = f"{BEGIN}if rank == 1:\n    time.sleep(0.3); raise KeyError('the cause')\n"
    wait = "try: hvd.numpy.allreduce(np.ones(1), name='b')\nexcept hvd.HvdliteError: os._exit(9)"
    done = call("-n", 3, *python(code + wait))
    assert done.code == 1, done.err
    assert "hvdliterun: rank 1 on " in done.err


FIELDS = """
def show(error):
    f = hvd.failure_of(error)
    print(f.kind, f.tensor, f.rank, f.ranks, f.pid in pids, f.host == socket.gethostname())
if rank == 2: sys.exit(0)
for wait in (lambda: hvd.allreduce(mx.nd.ones(1), name="m").asnumpy(),
             lambda: hvd.numpy.allreduce(np.ones(1), name="n")):
    try: wait()
    except RuntimeError as error: show(error)
try: hvd.numpy.allreduce(np.ones(1), name="n" * 300)
except ValueError as error: f = pickle.loads(pickle.dumps(error)); print(f.kind, len(f.tensor))
print(hvd.failure_of(mx.MXNetError("tensor 'm' can't complete: rank 2 left the job")))
"""


def test_failure_of_gives_the_fields_of_errors_of_hvdlite_and_mxnet():
    pids = "import pickle, socket\npids = hvd.allgather_object(os.getpid())\n"
    done = call("-n", 3, *python(BEGIN + pids + FIELDS)).passed()
    for rank in range(2):
        assert of_rank(rank, done.out) == [
            "rank left allreduce.m 2 (2,) True True",
            "rank left allreduce.n 2 (2,) True True",
            "invalid 255",
            "None",
        ]
