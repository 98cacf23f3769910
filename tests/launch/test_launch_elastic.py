"""hvdliterun --elastic: ranks die, the other ranks go on, and new ranks replace dead ranks."""

import itertools
import os
import re
import sys
import time
import uuid

import launching
import pytest
from jobs import ROOT
from launching import call, ends_of, left_with, python
from versions import no_examples

from hvdlite.launch import replacements
from hvdlite.launch.job import Job
from hvdlite.launch.ranks import Rank
from hvdlite.machine.hosts import SSH, Host

MARKER = uuid.uuid4().hex  # marks the jobs of this module; other tests run the same script


def elastic(*words, **env):
    """Run hvdliterun with all arguments but the last three, which go to the training script."""
    line, variables = launching.elastic(words[:-3], *words[-3:])
    return call(*line, env={**os.environ, "MARKER": MARKER, **variables, **env})


@pytest.mark.parametrize("dead", ["0", "0,2"])
def test_new_ranks_replace_ranks_that_died(dead):
    done = elastic("-n", 3, dead, 5, 3).passed()
    ranks, places = ends_of(done)
    assert places == {"0 of 3", "1 of 3", "2 of 3"}
    grown = "323" if dead == "0" else "32?12?3"  # new ranks may come in together or one by one
    for each in ranks:
        saw = "".join(str(size) for size, _ in itertools.groupby(each["sizes"]))
        assert re.fullmatch(grown, saw), done.out
    assert [each["name"] for each in ranks].count("new") == len(dead.split(","))
    for rank in dead.split(","):
        assert f"rank {rank} on" in done.err and "was killed by SIGKILL" in done.err
    assert not left_with(MARKER)


def test_a_job_grows_to_max_np_ranks():
    done = elastic("-n", 1, "--max-np", 2, "-", 1, 2).passed()
    assert ends_of(done)[1] == {"0 of 2", "1 of 2"}


def test_a_new_rank_without_the_state_does_not_train_alone():
    program = """if True:
        import os, signal
        import hvdlite as hvd
        hvd.init()
        die = lambda: "HVDLITE_REPLACEMENT" in os.environ or os.kill(os.getpid(), signal.SIGKILL)
        @hvd.elastic.run
        def train(state):
            while True:
                hvd.numpy.barrier()
                state.commit()
        state = hvd.elastic.ObjectState(step=0)
        state.register_reset_callbacks([die])
        train(state)
    """
    done = call("-n", 1, "--max-np", 2, *python(program))
    assert done.code == 1, done.err
    assert "all ranks that had the training state have died" in done.err


def test_an_elastic_function_that_ends_early_on_one_rank_fails_on_the_others():
    """Without the error, the other ranks would wait forever.

    Rank 0 handles the error after rank 1 has ended: rank 0 must not take that end for the cause.
    """
    program = """if True:
        import time
        import hvdlite as hvd
        hvd.init()
        @hvd.elastic.run
        def train(state):
            for step in range(9 - 3 * hvd.rank()):
                try:
                    hvd.numpy.allreduce(hvd.numpy.np.ones(1), name="x")
                except hvd.HvdliteError:
                    time.sleep(2)
                    raise
                state.commit()
        train(hvd.elastic.ObjectState())
    """
    done = call("--elastic", "-n", 2, *python(program))
    assert done.code == 1, done.err
    assert "'allreduce.x' can't complete: rank 1 has reached the end of the function" in done.err


@pytest.mark.parametrize("how", ["own", "twice", "wrapped", "copied"])
def test_an_error_on_all_ranks_ends_the_job_even_if_one_rank_ends_first(how):
    """If rank 0 took the end of rank 1 for the cause of its error, rank 0 would train on alone."""
    program = f"""if True:
        import time
        import hvdlite as hvd
        hvd.init()
        ones = hvd.numpy.np.ones
        def step():
            if {how == "own"}:
                raise RuntimeError("the loss is NaN")
            if {how == "twice"}:
                kept = [hvd.numpy.allreduce_async(ones(1), name=f"{{hvd.rank()}}") for _ in "ab"]
            try:
                hvd.numpy.allreduce(ones(1 + hvd.rank()), name="x")
            except hvd.HvdliteError as error:
                if {how == "wrapped"}:
                    raise RuntimeError("the step failed") from error
                raise hvd.HvdliteError("in a layer") from None  # as Keras does
        @hvd.elastic.run
        def train(state):
            try:
                if hvd.size() == 2:
                    step()
            except Exception:
                time.sleep(2 * (hvd.rank() == 0))
                raise
        train(hvd.elastic.ObjectState())
    """
    done = call("--elastic", "-n", 2, *python(program))
    assert done.code == 1, done.out + done.err


def test_ranks_go_on_without_a_rank_whose_object_cannot_be_pickled():
    program = """if True:
        import threading
        import hvdlite as hvd
        hvd.init()
        @hvd.elastic.run
        def train(state):
            mine = threading.Lock() if hvd.size() == 3 and hvd.rank() == 1 else 1
            print("all", hvd.allgather_object(mine, name="x"))
        train(hvd.elastic.ObjectState())
    """
    done = call("--elastic", "-n", 3, *python(program)).passed()
    assert done.out.count("all [1, 1") == 2, done.out + done.err


def test_waiting_for_a_handle_of_an_earlier_job_does_not_begin_new_jobs_forever():
    program = """if True:
        import os, signal
        import hvdlite as hvd
        hvd.init()
        kept = []
        @hvd.elastic.run
        def train(state):
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            one = hvd.numpy.np.ones(1)
            kept.append(hvd.numpy.allreduce_async(one, name=f"x{len(kept)}"))
            for handle in kept:
                handle.synchronize()
        train(hvd.elastic.ObjectState())
    """
    done = call("--elastic", "-n", 2, *python(program))
    assert done.code == 1, done.out + done.err
    assert "is dead, while tensor 'allreduce.x0' waited" in done.err


LATE = """if True:
    import os, signal, sys, time
    import hvdlite as hvd
    hvd.init()
    def step():
        if hvd.rank() == 1:
            {late}
        hvd.numpy.barrier()
    try:
        {run}
    except hvd.HvdliteError:
        {then}
"""
STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"
LIMITED = "hvd.elastic.run(lambda state: step())(hvd.elastic.ObjectState())"


@pytest.mark.parametrize(
    ("limit", "late", "run", "then", "error"),
    [
        ("DATA_TIMEOUT", STOPS, LIMITED, "raise", "has waited 2 s for the ranks at"),
        ("STALL_SHUTDOWN_TIME", STOPS, LIMITED, "raise", "has waited 2 s for the ranks at"),
        ("STALL_SHUTDOWN_TIME", STOPS, "step()", "raise", "has not answered for"),
        ("STALL_SHUTDOWN_TIME", STOPS, "step()", "sys.exit(1)", ""),
        ("STALL_SHUTDOWN_TIME", STOPS, "step()", "sys.exit(0)", ""),
        ("STALL_SHUTDOWN_TIME", "time.sleep(600)", LIMITED, "raise", "not by rank 1"),
    ],
)
def test_a_late_rank_ends_when_the_other_ranks_stop_waiting(limit, late, run, then, error):
    program = LATE.format(late=late, run=run, then=then)
    limits = {f"HVDLITE_{limit}_SECONDS": "2", "HVDLITE_ELASTIC_TIMEOUT_SECONDS": "2"}
    done = call("--elastic", "-n", 3, *python(program), env={**os.environ, **limits})
    assert done.code == (then != "sys.exit(0)"), done.err
    assert error in done.err


def test_a_new_rank_that_hangs_does_not_delay_the_end_of_the_job():
    done = elastic("-n", 3, "1", 5, 2, REPLACEMENTS_HANG="1").passed()
    assert ends_of(done)[1] == {"0 of 2", "1 of 2"}
    assert not left_with(MARKER)


def test_another_host_gets_the_new_rank_if_ssh_does_not_answer():
    """A host that is lost while a new rank starts there does not close its connection."""
    hosts = [Host(f"{name}.invalid", 1) for name in "abc"]
    job = Job(["true"], 1, "ssh", hosts=hosts, ssh=SSH(["sh", "-c", "exec sleep 60"]))
    job = job._replace(elastic=True, most=2, start_timeout=0.2)
    first = Rank(0, None, "a", "", 0, {})
    first.open_port = {"address": "", "port": 0}
    coming = replacements.Replacements(job, {}, {0: first}, print, print)
    for _ in range(2):
        coming.poll()
        time.sleep(0.3)
    coming.poll()
    coming.close()
    assert set(coming._hosts.values()) == {host.name for host in hosts}


@no_examples
def test_the_elastic_example_trains_on_when_a_rank_dies_in_each_epoch():
    pytest.importorskip("sklearn.datasets")
    example = [sys.executable, ROOT / "examples" / "elastic_mnist.py"]
    done = call("--elastic", "-n", 3, *example, "--epochs", 3, "--kill-each-epoch").passed()
    found = re.search(r"accuracy (\S+), .* s, ranks: \d, died: (\d)", done.out)
    assert found, done.out + done.err
    assert float(found[1]) > 0.9
    assert int(found[2]) >= 2
    assert done.err.count("was killed by SIGKILL") >= 2


def test_a_script_without_elastic_run_gets_no_new_rank():
    """The new rank would train alone, in a separate job."""
    program = """if True:
        import os, time
        import hvdlite as hvd
        hvd.init()
        print("up", hvd.size())
        if hvd.rank() == 1:
            os.kill(os.getpid(), 9)
        until = time.monotonic() + 5  # time in which the launcher would start a new rank
        while hvd.size() == 2 and time.monotonic() < until:
            time.sleep(0.1)
    """
    done = call("--elastic", "-n", 2, *python(program))
    assert sorted(done.out.splitlines()) == ["[0] up 2", "[1] up 2"], done.out + done.err


def test_a_job_with_fewer_ranks_than_min_np_fails():
    done = elastic("-n", 2, "--min-np", 2, "1", 5, 2)
    assert done.code == 1
    assert "ranks that are left: 1; to go on, elastic training needs at least 2" in done.err


def test_a_job_whose_new_ranks_die_again_fails_at_the_reset_limit():
    done = elastic("-n", 2, "--reset-limit", 2, "1,new", 5, 2)
    assert done.code == 1, done.err
    assert (
        "ranks have died 3 times, and elastic training goes on after at most 2 deaths" in done.err
    )
    assert "--reset-limit" in done.err.partition("hvdliterun: rank 0 on")[2], done.err
    # perhaps no rank is left that notices the third death
    assert done.err.count("; the others go on") >= 2
    assert not left_with(MARKER)


def test_new_ranks_know_the_number_of_earlier_deaths():
    """Deaths count towards --reset-limit even if no living rank has seen the first death."""
    program = """if True:
        import os, signal, time
        import hvdlite as hvd
        hvd.init()
        calls = [0] if "HVDLITE_REPLACEMENT" in os.environ else []
        @hvd.elastic.run
        def train(state):
            calls.append(hvd.size())
            if calls == [2, 1, 2] or calls == [2] and hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                hvd.numpy.barrier()
                time.sleep(0.005)
                state.commit()
        train(hvd.elastic.ObjectState(step=0))
    """
    done = call("-n", 2, "--reset-limit", 1, *python(program))
    assert done.code == 1, done.err
    assert (
        "ranks have died 2 times, and elastic training goes on after at most 1 deaths" in done.err
    )


def test_a_new_rank_that_fails_because_its_job_ended_is_not_blamed(tmp_path):
    """The new rank fails and ends after the other ranks."""
    program = """if True:
        import os, pathlib, signal, sys, time
        new, first = (pathlib.Path(sys.argv[1]) / name for name in ("new", "first"))
        if "HVDLITE_REPLACEMENT" in os.environ:
            new.touch()
            while os.path.exists(f"/proc/{first.read_text()}"):
                time.sleep(0.01)
        import hvdlite as hvd
        hvd.init()
        if hvd.rank() == 0:
            first.write_text(str(os.getpid()))
        hvd.barrier()
        @hvd.elastic.run
        def train(state):
            if hvd.rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            hvd.numpy.barrier()
            while not new.exists():
                time.sleep(0.01)
            raise OSError("the disk is full")
        train(hvd.elastic.ObjectState(step=0))
    """
    done = call("--elastic", "-n", 2, *python(program), tmp_path)
    assert done.code == 1, done.err
    assert "[2] " in done.err, "the new rank has not failed"
    report = done.err.partition("hvdliterun: rank 0 on")[2]
    assert "failed with exit code 1" in report, done.err
    assert "    OSError: the disk is full" in report


def test_a_job_whose_ranks_all_die_fails():
    done = elastic("-n", 2, "0,1", 5, 2)
    assert done.code == 137, done.err
    assert "was killed by SIGKILL" in done.err
    assert not left_with(MARKER)
