"""How jobs end: ranks that leave while other ranks wait for them, pending work, and exit codes."""

import re
import sys

import pytest
from jobs import TESTS, alone, assert_passed, mpirun, script
from places import CARRIERS, on_carrier

LEAVE, EXITS = (str(TESTS / "scripts" / f"{name}.py") for name in ("leave", "exits"))
every_carrier = pytest.mark.parametrize("carrier", CARRIERS)
FEWER = (
    "; if it had fewer batches, give all ranks the same number of batches, as DistributedSampler "
    "does, or call"
)
REASONS = {
    "raise": "its script raised RuntimeError: no more data",
    "raise SystemExit": "its script ended with exit code 3",
    "sys.exit(text)": "its script ended with exit code 1 (no such file: a.rec)",
    "exit function": "an exit function of its script raised KeyError: 'label'",
    "unreadable": "its script raised Unreadable",
    "end": f"its script has ended{FEWER}",
    "caught exit": f"its script has ended{FEWER}",
    "exit 0": f"its script has ended{FEWER}",
    "interrupt": "its script raised KeyboardInterrupt",
    "shutdown": f"it called shutdown(){FEWER}",
}
TENSORS = {
    "numpy": "allreduce.w",
    "mxnet": "allreduce.w",
    "object": "object.w.length",
    "trainer": "allreduce.net.",
}


def check_left(job, how: str, *waits: str) -> None:
    results = job.results()
    assert results.keys() == {0, 2}, job.output
    for wait in waits:
        texts = [result[wait] for result in results.values()]
        print(f"{how}, {wait}: {texts[0]}")
        for text in texts:
            assert f"tensor '{TENSORS[wait]}" in text
            assert f"can't complete: rank 1 left the job ({REASONS[how]}" in text
            assert ") before submitting it" in text
        # a trainer has several tensors, and the ranks may have waited for different ones
        assert wait == "trainer" or len(set(texts)) == 1


@pytest.mark.parametrize("how, waits", [("raise", [*TENSORS]), ("end", ["mxnet", "trainer"])])
def test_every_kind_of_wait_raises_an_error_that_says_why_a_rank_has_left(how, waits):
    job = script(3, "leave", how, "+".join(waits))
    check_left(job, how, *waits)
    assert (job.status == 0) == (how == "end")


@pytest.mark.parametrize("how", ["end", "shutdown"])
def test_opening_a_group_with_a_rank_that_has_left_is_an_error(how):
    job = assert_passed(script(3, "leave", how, "group"))
    first, last = job.results()[0], job.results()[2]
    assert first["group"].endswith(
        f"which should send it, has left: {REASONS[how]} hvd.join() after the last batch"
    ), first
    assert last["group"] == "rank 1 has left the job: ranks [0, 1, 2] can't open a group of ranks"
    assert (first["again"], last["again"]) == (first["group"], last["group"])
    assert last["pending"] == []  # no receive: when a group opens, only its first rank receives


@every_carrier
@pytest.mark.parametrize("how", [how for how in REASONS if how not in ("raise", "end")])
def test_the_error_of_waiting_ranks_says_how_a_rank_has_left(how, carrier):
    job = on_carrier(carrier, 3, LEAVE, how, "numpy")
    check_left(job, how, "numpy")
    ends_well = how in ("caught exit", "exit 0", "shutdown")
    assert (job.status == 0) == ends_well
    if ends_well:  # the remaining ranks may go on, but collectives that need rank 1 are errors
        for result in job.results().values():
            assert "rank 1 left the job" in result["again"]


def test_an_operator_that_fails_on_one_rank_is_an_error_on_all_ranks():
    """MXNet never runs the collective on the rank that failed, so other ranks must get an error.

    The text depends on whether MXNet drops this collective before or after the script ends.
    """
    job = script(3, "leave", "failed operator", "mxnet")
    texts = {rank: result["mxnet"] for rank, result in job.results().items()}
    assert texts.keys() == {0, 2}, job.output
    told = r"no data from rank 1: |rank 1 left the job \(its script raised MXNetError: "
    for text in texts.values():
        assert re.search(r"tensor 'allreduce\.w'.*(" + told + ")", text), text
    assert job.status != 0


@pytest.mark.parametrize("ranks", [1, 3])
def test_init_after_shutdown_starts_a_new_job(ranks):
    """shutdown() completes pending work; mpi4py works before and after it."""
    ways = "pushed_then_shutdown+shutdown_at_work+mpi4py_after_us"
    job = assert_passed(script(ranks, "exits", f"{ways}+pushed_then_end"))
    expected = {"pushed": True, "again": float(ranks), "at_work": True, "mpi4py": True}
    assert job.results() == dict.fromkeys(range(ranks), expected)
    assert "hvdlite" not in job.output and "Error" not in job.output


def test_pending_work_that_cannot_complete_is_reported_at_exit():
    """The interpreter must not hang."""
    job = script(3, "exits", "pending_for_ever")
    assert "can't complete" in job.output, job.output
    print("pending at exit:", next(x for x in job.output.splitlines() if "can't complete" in x))


def test_a_rank_that_ends_early_waits_at_exit_for_computing_ranks():
    job = assert_passed(script(3, "exits", "one_ends_early_the_others_compute_on"))
    assert job.results() == {0: {"computed": True}, 2: {"computed": True}}


def test_an_exception_ends_the_job_while_other_ranks_compute():
    job = script(
        3, "exits", "one_raises_while_the_others_compute_for_long",
        env={"HVDLITE_EXIT_TIMEOUT_SECONDS": "1"},
    )  # fmt: skip
    assert job.status != 0
    assert "RuntimeError: broken" in job.output
    assert "hvdlite: rank 1 ends the job" in job.output
    assert not job.results()


def test_an_exception_ends_the_job_while_threads_of_the_rank_wait():
    """Exit functions can't end the job, because Python first waits for the threads."""
    job = script(2, "exits", "one_raises_while_its_threads_wait")
    assert job.status != 0
    assert (
        "tensor 'allreduce.b' can't complete: rank 1 left the job (its script raised" in job.output
    )


@pytest.mark.parametrize(
    "how, code", [("True", 1), ("256", 1), ("[sys.stdout.close(), 3][1]", 3)], ids=str
)
def test_a_rank_that_fails_does_not_wait_for_computing_ranks(how, code):
    env = {"HVDLITE_EXIT_TIMEOUT_SECONDS": "1"}
    job = script(3, "exits", "one_exits_while_the_others_compute_for_long", how, env=env)
    assert job.status == code, job.output
    assert "hvdlite: rank 1 ends the job" in job.output
    assert not job.results()


@pytest.mark.parametrize("where, code", [("left", 3), ("stays", 3), ("waits", 1)])
def test_a_rank_that_fails_after_the_others_left_ends_the_job(where, code):
    """The failed rank must not wait in MPI_Finalize until the other ranks finish computing."""
    name = "one_fails_when_others_have_left_and_compute_for_long"
    env = {"HVDLITE_EXIT_TIMEOUT_SECONDS": "1"}
    job = script(2, "exits", name, where, env=env)
    assert job.status == code, job.output
    assert "hvdlite: rank 0 ends the job" in job.output
    assert not job.results()


SAVES = """
def save():
    from mpi4py import MPI
    if MPI.COMM_WORLD.rank == 1: raise RuntimeError("the model was not saved")
"""
BEGINS = "import atexit, numpy as np, hvdlite as hvd\nhvd.init(); hvd.numpy.allreduce(np.ones(3))\n"
REGISTERS = "import atexit; atexit.register(save)\n"


@pytest.mark.parametrize(
    "code", [BEGINS + SAVES + REGISTERS, SAVES + REGISTERS + BEGINS], ids=["after", "before"]
)
def test_an_exception_in_an_exit_function_is_a_failure(code):
    """Python itself prints the exception and ends with exit code 0.

    atexit runs a function last, after the rank has left the job, if it was registered first.
    """
    job = mpirun(3, "-c", code)
    assert "RuntimeError: the model was not saved" in job.output
    assert job.status == 1, job.output


@every_carrier
@pytest.mark.parametrize(
    "how, status, text",
    [
        ("raises", 1, "RuntimeError: no data here"),
        ("exits", 2, "error: no such option"),
        ("ends", None, "init(): rank 1's script has ended without calling init()"),
    ],
)
def test_a_rank_that_ends_before_init_fails_the_waiting_ranks(how, status, text, carrier):
    """Otherwise the rank would wait in MPI_Finalize, and the other ranks would wait in init()."""
    env = {"HVDLITE_EXIT_TIMEOUT_SECONDS": "1"}
    job = on_carrier(carrier, 3, EXITS, f"one_{how}_before_init", env=env)
    assert text in job.output, job.output
    assert job.status == (status or job.status) != 0  # status None: any, as prterun may crash
    if carrier == "tcp":  # with MPI, mpirun ends the other ranks when one rank fails
        assert job.output.count("script has ended without calling init()\n") >= 2
    assert not job.results()


def test_a_failed_rank_ends_ranks_whose_shells_would_go_on():
    """Mpirun notices the end of a shell that it has started, not the end of the shell's rank."""
    shell = "import os, sys; os.execv('/bin/sh', ['sh', '-c', sys.argv[1]])"
    env = {"HVDLITE_EXIT_TIMEOUT_SECONDS": "1"}
    job = mpirun(
        3, "-c", shell, f"{sys.executable} {EXITS} one_ends_before_init; sleep 100", env=env
    )
    assert "rank 1's script has ended without calling init()" in job.output
    assert job.status != 0 and job.seconds < 90, job.output


@every_carrier
def test_if_a_rank_fails_before_init_a_late_rank_0_gets_an_error(carrier):
    """Otherwise, without MPI, rank 0 would wait for rank 1 until init() times out."""
    env = {"HVDLITE_EXIT_TIMEOUT_SECONDS": "0.5"}
    job = on_carrier(carrier, 3, EXITS, "one_raises_before_init", "late", env=env)
    assert job.status != 0 and "RuntimeError: no data here" in job.output, job.output
    if carrier == "tcp":
        assert "rank 1 has failed; it stays 6" in job.output
        assert job.output.count("init(): rank 1's script has ended without calling init()\n") >= 1
        assert job.seconds < 60, job.output


def test_a_rank_outside_the_list_given_to_init_may_end_first():
    job = assert_passed(script(3, "exits", "one_ends_before_init", "[0, 2]"))
    assert list(job.results()) == [0, 2]


SPAWNS = """
import sys
import numpy as np
from jobs import report
from mpi4py import MPI
import hvdlite as hvd

parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    both = MPI.COMM_SELF.Spawn(sys.executable, [__file__], 1).Merge(False)
else:
    both = parent.Merge(True)
hvd.init(both)
total = hvd.numpy.allreduce(np.ones(1), op=hvd.Sum)
report(hvd.rank(), total=float(total[0]), size=hvd.size())
hvd.shutdown()
both.Free()
"""


def test_init_joins_a_process_and_the_processes_it_spawned(tmp_path):
    """Each process is alone in its MPI.COMM_WORLD; a merged communicator joins both."""
    program = tmp_path / "spawns.py"
    program.write_text(SPAWNS)
    job = assert_passed(mpirun(1, str(program)))
    assert job.results() == {rank: {"total": 2.0, "size": 2} for rank in range(2)}


OUTLIVES = """
import ctypes, sys, weakref, hvdlite, mxnet as mx, numpy as np

for name in [name for name in sys.modules if name.startswith("mxnet")]:  # so Python frees none
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules[name]))
sys.modules["mxnet.ndarray._internal"].kept = mx.nd.from_numpy(np.ones(3))
memory = np.ones(3)
ended = weakref.ref(memory)
mx.nd.from_numpy(memory).wait_to_read()
del memory
assert ended() is None  # freed, as without hvdlite
"""


def test_gradients_that_still_exist_at_exit_do_not_crash_the_process():
    """A gradient stays alive at exit if, for example, a module keeps its parameter."""
    assert alone(OUTLIVES) == ""
