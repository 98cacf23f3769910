"""Late ranks are named in warnings and errors; threads may open groups while a job ends."""

from jobs import assert_passed, mpirun, script

# Rank 1 submits an allreduce late, because it first waits for something else.
LATE = """
import threading, time, numpy as np, hvdlite as hvd
from jobs import report
hvd.init()
errors = {}
def wait_for(name):
    try: hvd.numpy.allreduce(np.ones(3), name=name)
    except hvd.HvdliteError as error: errors[name] = str(error)
other = threading.Thread(target=wait_for, args=("something else",))
if hvd.rank() == 1:
    other.start()
    time.sleep(6)
wait_for("gradient")
if hvd.rank() != 1: wait_for("something else")
else: other.join()
report(hvd.rank(), **errors)
"""
# Rank 2 opens a group of ranks when opening it has already failed on ranks 0 and 1.
GROUP = """
import os, sys, time, hvdlite as hvd
from hvdlite.core.group_opening import open_among
from jobs import report
hvd.init()
while hvd.rank() == 2 and len(os.listdir(sys.argv[1])) < 2: time.sleep(0.05)
try: open_among([0, 1, 2], 1)
except hvd.HvdliteError as error:
    report(hvd.rank(), text=str(error), kind=error.kind, ranks=list(error.ranks))
if hvd.rank() != 2: open(os.path.join(sys.argv[1], str(hvd.rank())), "w").close()
"""
# Rank 2 opens a group of ranks after rank 1 has given up, and before rank 0 gives up.
GIVEN_UP = """
import os, sys, time, hvdlite as hvd
from hvdlite.core.group_opening import open_among
from jobs import report
hvd.init()
folder, text = sys.argv[1], ""
if hvd.rank() == 0: time.sleep(3)
while hvd.rank() == 2 and not os.listdir(folder): time.sleep(0.05)
try: open_among([0, 1, 2], 1)
except hvd.HvdliteError as error: text = str(error)
if hvd.rank() == 1: open(os.path.join(folder, "1"), "w").close()
report(hvd.rank(), text=text)
"""
# Rank 1 sends rank 0 a message of another size in place of the message with which it would join.
WRONG_MESSAGE = """
import numpy as np, hvdlite as hvd
from hvdlite.core.collectives import start_all
from hvdlite.core.group_opening import open_among
from hvdlite.core.native import lib
from jobs import report
hvd.init()
nine, text = np.zeros(9, np.int32), ""
to_0 = lib.HVD_SEND, ["group.0.1.1"], [nine], [nine], [{"root": 0}]
try: start_all(*to_0).finish() if hvd.rank() == 1 else open_among([0, 1, 2], 1)
except hvd.HvdliteError as error: text = str(error)
report(hvd.rank(), text=text)
"""
# Rank 2 has joined when ranks 0 and 1 disagree about their step.
DISAGREE_AFTER_JOIN = """
import hvdlite as hvd
from hvdlite.training.step_check import StepCheck
from jobs import report
hvd.init()
check, text = StepCheck("optimizer0", "1 pass", hvd.global_process_set), ""
check.start(0, [0]).synchronize()
try:
    if hvd.rank() != 2: check.start(5 + hvd.rank(), [0]).synchronize()
except hvd.HvdliteError as error: text = str(error)
hvd.join()
report(hvd.rank(), text=text)
"""
# One thread closes a group while another thread ends the job, over sockets, with varying delays.
CLOSED_APART = """
import threading
from jobs import report
from hvdlite.core.native import ffi, lib, new_error
lowest, no_file = ffi.new("int[1]", [0]), ffi.new("int[1]", [-1])
sockets = ffi.new("hvd_sockets *", [0, 1, lowest, no_file, no_file])
alone, opener = ffi.new("hvd_socket_group *", (1, 1)), ffi.addressof(lib, "transport_tcp_open")
job, pair = (ffi.new("hvd_transport *", (opener, where)) for where in (sockets, alone))
group, error = ffi.new("int *"), new_error()
for life in range(200):
    assert lib.hvd_init(job, error) == lib.HVD_OK, ffi.string(error.text)
    assert lib.hvd_group_open(pair, lowest, group, error) == lib.HVD_OK
    lib.hvd_leave(lib.HVD_ALL_GROUPS, b"done")
    while not lib.hvd_wait_end(lib.HVD_ALL_GROUPS, 0.1): pass
    meet = threading.Barrier(2)
    closes = threading.Thread(target=lambda: (meet.wait(), lib.hvd_group_close(group[0])))
    closes.start()
    meet.wait()
    for _ in range(life % 40 * 100): pass
    lib.hvd_close()
    closes.join()
report(0, lives=life + 1)
"""


def test_a_warning_names_a_late_rank():
    job = assert_passed(mpirun(3, "-c", LATE, env={"HVDLITE_STALL_CHECK_TIME_SECONDS": "3"}))
    lines = [line for line in job.output.splitlines() if "has waited for" in line]
    print("\n".join(lines))
    assert len(lines) == 2, job.output
    text = next(line for line in lines if "tensor 'allreduce.gradient'" in line)
    assert "submitted by ranks 0, 2, not by rank 1 (rank 1 waits for 'allreduce.something" in text
    assert set(map(str, job.results().values())) == {"{}"}


def test_after_the_stall_shutdown_time_a_late_rank_is_an_error():
    env = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "3"}
    job = mpirun(3, "-c", LATE, env=env)
    for rank in (0, 2):
        text = job.results()[rank]["gradient"]
        assert "tensor 'allreduce.gradient' has waited for" in text
        assert "submitted by ranks 0, 2, not by rank 1" in text


def test_opening_a_group_with_a_late_rank_is_an_error_about_this_rank(tmp_path):
    env = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "2"}
    job = assert_passed(mpirun(3, "-c", GROUP, str(tmp_path), env=env))
    first, second, late = (job.results()[rank] for rank in range(3))
    assert {first["kind"], second["kind"], late["kind"]} == {"stalled"}
    assert first["ranks"] == late["ranks"] == [2], (first, late)
    assert second["ranks"] in ([2], []), second  # []: rank 1 has not heard who is late
    assert "rank 2 has not sent it" in first["text"]
    assert "is late: ranks [0, 1, 2] can't open a group of ranks" in second["text"]


def test_a_group_with_a_rank_whose_call_timed_out_is_an_error_on_all_ranks(tmp_path):
    """Rank 1's call has timed out. Ranks 0 and 2 must not wait for rank 1 without a limit."""
    env = {"HVDLITE_STALL_SHUTDOWN_TIME_SECONDS": "5"}
    job = assert_passed(mpirun(3, "-c", GIVEN_UP, str(tmp_path), env=env))
    texts = [job.results()[rank]["text"] for rank in range(3)]
    assert all("late" in text or "given up" in text for text in texts), job.output


def test_a_group_that_the_first_rank_cannot_open_is_not_reported_as_late():
    job = assert_passed(mpirun(3, "-c", WRONG_MESSAGE))
    first, _, other = (job.results()[rank]["text"] for rank in range(3))
    assert "shape" in first or "bytes" in first, job.output
    assert other.startswith("rank 1 and the first rank can't exchange messages: see the first"), (
        other
    )


def test_a_disagreement_after_join_is_reported_as_a_disagreement():
    job = assert_passed(mpirun(3, "-c", DISAGREE_AFTER_JOIN))
    for rank in range(2):
        text = job.results()[rank]["text"]
        step = f"optimizer0 (1 pass); iteration {5 + rank}; gradient of variable 0"
        assert text.startswith(f"the optimizer's step: ranks disagree; this rank has: {step}. Load")


def test_closing_a_job_while_a_thread_opens_a_group_is_safe():
    """The thread that opens the group must not use memory that the other thread has freed."""
    env = {"HVDLITE_WINDOW": "0", "MALLOC_PERTURB_": "165"}
    job = assert_passed(script(2, "opened_meanwhile", "shuts down", env=env))
    assert job.results()[0]["text"] == "the job ended during this call"


def test_closing_a_group_while_the_job_ends_is_safe():
    """One thread closes the group. Meanwhile the other thread frees the job's sockets."""
    job = assert_passed(mpirun(1, "-c", CLOSED_APART, env={"MALLOC_PERTURB_": "165"}))
    assert job.results()[0]["lives"] == 200


def test_leaving_a_job_while_a_group_is_opened_does_not_hang():
    """shutdown() must not wait forever for the ranks of the new group to leave the group."""
    job = assert_passed(script(2, "opened_meanwhile", "leaves"))
    assert [result["ended"] for result in job.results().values()] == [1, 1]
    left = "this rank has left the job (this group of ranks was added afterwards)"
    assert job.results()[0]["refused"] == f"{left}: it can't submit tensors any more"
