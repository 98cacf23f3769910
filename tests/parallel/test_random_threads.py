"""Random programs of several threads that share handles, with process sets, joins and shutdowns.

Each thread starts its collectives in an order that differs between ranks, and waits for the
handles of all threads. Every result must equal that of a NumPy model, and nothing may hang.
Variables: HVDLITE_TEST_PROGRAMS, the number of programs; HVDLITE_TEST_SECONDS, the least run time;
HVDLITE_TEST_SEED, the seed of the first program. A failure names the seed and the rank. To repeat
it, set this seed and HVDLITE_TEST_PROGRAMS=1.
"""

import contextlib
import functools
import os
import sys
import threading
import time
from typing import Any, Callable, Dict, List, NamedTuple

import numpy as np
import pytest
from random_works import (
    ALLGATHER,
    ALLREDUCE,
    ALLTOALL,
    BROADCAST,
    REDUCESCATTER,
    Work,
    as_this_rank_has_it,
    random_work,
    result_of,
)  # fmt: skip
from threads import in_threads, outcome_of

import hvdlite as hvd

PROGRAMS = int(os.environ.get("HVDLITE_TEST_PROGRAMS", 60))
SECONDS = float(os.environ.get("HVDLITE_TEST_SECONDS", 0))
SEED = int(os.environ.get("HVDLITE_TEST_SEED", 0))
HANGS = 60  # seconds after which a program counts as hanging
PULSES = 15

of = hvd.numpy
STARTS: Dict[int, Callable] = {
    ALLREDUCE: of.allreduce_async, BROADCAST: of.broadcast_async, ALLGATHER: of.allgather_async,
    REDUCESCATTER: of.reducescatter_async, ALLTOALL: of.alltoall_async,
}  # fmt: skip


def waited_later(*args):
    return of.allreduce_async(*args).synchronize()


class Task(NamedTuple):
    """A collective of one thread, among the ranks of a process set."""

    work: Work  # its ranks are numbered within the process set
    name: str
    process_set: Any
    dropped: bool  # True: no thread waits for the handle


class Program(NamedTuple):
    """The tasks of a random program; each rank's threads do the tasks in their own order."""

    seed: int
    threads: List[List[Task]]
    extras: List[int]  # for each rank: tensors that each thread reduces before the rank joins
    join_in: Any  # the process set whose ranks call join(); None: no rank calls join()
    ends: bool  # True: shutdown() follows while rank 0 still has a handle


def random_sets(random, size: int) -> list:
    """Return random process sets, neither empty nor of all ranks."""
    lists = {tuple(np.flatnonzero(random.rand(size) < 0.6)) for _ in range(3)}
    wanted = [list(map(int, ranks)) for ranks in sorted(lists) if 0 < len(ranks) < size]
    return [hvd.add_process_set(ranks) for ranks in wanted]


def random_task(random, seed: int, thread: int, number: int, sets: list) -> Task:
    process_set = sets[random.randint(len(sets))]
    work = random_work(random, 1000 * thread + number, process_set.size())
    dropped = random.rand() < 0.1
    # Later programs use the same name with other shapes. The name of a dropped task is used only
    # once, because the task may still be in progress.
    name = f"{thread}.{number}" if not dropped else f"dropped.{seed}.{thread}.{number}"
    return Task(work, name, process_set, dropped)


def random_program(seed: int, sets: list, size: int) -> Program:
    random = np.random.RandomState(seed)
    threads = [
        [random_task(random, seed, thread, i, sets) for i in range(random.randint(1, 9))]
        for thread in range(random.randint(2, 5))
    ]
    joins = sets[random.randint(len(sets))] if random.rand() < 0.4 else None
    return Program(seed, threads, list(random.randint(0, 4, size)), joins, random.rand() < 0.05)


def start(task: Task):
    """Start this rank's part; return the handle and the expected result."""
    process_set, rank = task.process_set, task.process_set.rank()
    own = as_this_rank_has_it(task.work, rank, process_set.size())
    array, options = own.input(rank), {"name": task.name, "process_set": process_set}
    if own.kind in (ALLREDUCE, REDUCESCATTER):
        options["op"] = own.op
    if own.kind == BROADCAST:
        options["root_rank"] = process_set.ranks[own.root]
    if own.kind == ALLTOALL:
        options["splits"] = own.rows[rank]
    if own.kind in (ALLREDUCE, BROADCAST) and own.in_place:
        options["out"] = array
    return STARTS[own.kind](array, **options), result_of(own, rank, process_set.size())


def check(task: Task, outcome, expected: np.ndarray) -> None:
    if task.work.wrong:
        assert f"ranks disagree on the {task.work.wrong}" in str(outcome), task
        return
    if isinstance(outcome, Exception):
        raise outcome
    result = outcome[0] if isinstance(outcome, tuple) else outcome
    np.testing.assert_allclose(
        result.astype(np.float64), expected.astype(np.float64), rtol=2e-3, err_msg=str(task)
    )


class Shared:
    """The handles of all threads of this rank; each thread waits for all of them."""

    def __init__(self, program: Program, rank: int) -> None:
        self._rank = rank
        self._started: list = []
        self._all_started = threading.Barrier(len(program.threads))
        self._program = program

    def run(self, thread: int) -> None:
        """Run one thread's part of the program."""
        seed = self._program.seed
        random = np.random.RandomState([seed, thread, self._rank])
        self._pulse(thread, random)
        mine = [t for t in self._program.threads[thread] if t.process_set.included()]
        for i in random.permutation(len(mine)):
            handle, expected = start(mine[i])
            if not mine[i].dropped:
                self._started.append((mine[i], handle, expected))
            if random.rand() < 0.3:
                handle.poll()
        self._all_started.wait(HANGS)
        for i in random.permutation(len(self._started)):
            task, handle, expected = self._started[i]
            while random.rand() < 0.3 and not handle.poll():
                pass
            check(task, outcome_of(handle), expected)
        self._join(thread)

    def _pulse(self, thread: int, random) -> None:
        """Allreduce a tensor of the same name again and again, sometimes after a delay."""
        ranks = hvd.size()
        for value in range(self._program.seed, self._program.seed + PULSES):
            if random.rand() < 0.1:
                time.sleep(random.rand() * 1e-3)
            own = np.full(10 ** (thread % 4), value * (self._rank + 1), np.int64)
            allreduce = of.allreduce if random.rand() < 0.9 else waited_later
            total = allreduce(own, f"pulse.{thread}", hvd.Sum)
            assert (total == value * ranks * (ranks + 1) // 2).all()

    def _join(self, thread: int) -> None:
        """Allreduce this rank's tensors before it joins; each thread has equally many tensors."""
        everyone = self._program.join_in
        if everyone is None or not everyone.included():
            return
        extras = self._program.extras
        for i in range(extras[self._rank]):
            ones = np.ones(5)
            total = of.allreduce(ones, f"x{thread}.{i}", hvd.Sum, process_set=everyone)
            assert total.tolist() == [sum(extras[r] > i for r in everyone.ranks)] * 5


def end_and_begin(rank: int, size: int) -> None:
    left = []
    if rank == 0 and size > 1:
        x = np.ones((size, 2))
        left = [of.allreduce_async(x, name="left"), of.allgather_async(x, name="left")]
    waiter = threading.Thread(target=lambda: [outcome_of(handle) for handle in left])
    waiter.start()
    hvd.shutdown()
    hvd.init()
    waiter.join()
    for handle in left:
        assert "shutdown()" in str(outcome_of(handle))


def run_program(program: Program, rank: int, size: int) -> None:
    shared = Shared(program, rank)
    in_threads([lambda t=t: shared.run(t) for t in range(len(program.threads))])
    if program.join_in is not None and program.join_in.included():
        last = hvd.join(process_set=program.join_in)
        assert last in program.join_in.ranks
    if program.ends:
        end_and_begin(rank, size)


@contextlib.contextmanager
def told(seed: int, rank: int, size: int):
    """Name the seed and the rank if the program fails or hangs."""
    which = f"HVDLITE_TEST_SEED={seed}: rank {rank} of {size}"
    say = functools.partial(print, f"\n{which} hangs", file=sys.__stderr__, flush=True)
    timer = threading.Timer(HANGS, say)  # before pytest's time limit, at which it prints stacks
    timer.start()
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{which} failed: {type(error).__name__}: {error}") from error
    finally:
        timer.cancel()


@pytest.mark.timeout(SECONDS + 120, method="thread")
def test_random_programs_of_several_threads_equal_a_numpy_model(rank, size):
    sets, seed, until = [hvd.global_process_set], SEED, time.monotonic() + SECONDS
    more = None
    while more is not False:
        with told(seed, rank, size):
            if more is None or seed % 10 == 0 or sets[-1].process_set_id is None:
                for each in sets[1:]:
                    hvd.remove_process_set(each)
                sets = sets[:1] + random_sets(np.random.RandomState(seed // 10), size)
            run_program(random_program(seed, sets, size), rank, size)
            seed += 1
            more = seed < SEED + PROGRAMS or time.monotonic() < until
            more = bool(of.broadcast(np.array([more]), 0, "more")[0])
    for each in sets[1:]:
        hvd.remove_process_set(each)
    if SECONDS and rank == 0:
        print(f"\n{seed - SEED} programs on {size} ranks", file=sys.__stderr__)
