"""Times the same work on all ranks, from a common start to the end of the last rank."""

import gc
import time
from typing import Dict, Optional

from hvdlite.bench import figures, machine, works
from hvdlite.bench.cases import Case
from hvdlite.core.world import World

MOST = 1000  # most repetitions


def once(work, world: World) -> tuple:
    """Do the work; return this rank's seconds, its CPU seconds, and its seconds with preparation.

    The seconds and the CPU seconds are divided by ``work.per_run``. CPU seconds are those of all
    threads of this process.
    """
    begin = time.perf_counter()
    work.refresh()
    world.barrier()
    cpu, start = time.process_time(), time.perf_counter()
    work.run()
    end, cpu_end = time.perf_counter(), time.process_time()
    world.barrier()  # so that a rank that is done takes no core from ranks that still run
    return (end - start) / work.per_run, (cpu_end - cpu) / work.per_run, end - begin


def sample(work, world: World, budget: float) -> figures.Sample:
    """Measure for about ``budget`` seconds, at least ``work.least`` repetitions. Collective."""
    works = [work, work.alone] if work.alone else [work]
    warm = [[once(each, world) for each in works] for _ in range(work.warm_up)]
    spent = min(sum(run[2] for run in turn) for turn in warm)
    # All ranks use rank 0's number of repetitions, because ranks measure different times.
    n = world.allgather(int(min(MOST, max(work.least, budget / spent))))[0]
    gc.collect()
    gc.disable()
    try:
        mine = [[once(each, world)[:2] for each in works] for _ in range(n)]
    finally:
        gc.enable()
    work.check()
    turns = list(zip(*world.allgather(mine)))  # [repetition][rank][work] -> seconds, CPU seconds
    return figures.Sample(
        seconds=[max(run[0][0] for run in turn) for turn in turns],
        cpu_seconds=[sum(run[0][1] for run in turn) for turn in turns],
        alone=[max(run[1][0] for run in turn) for turn in turns] if work.alone else [],
    )


def measure(
    library, case: Case, world: World, budget: float, bandwidth: Optional[float] = None
) -> Optional[Dict]:
    """Return the row of a case, equal on all ranks; None: the library can't do it. Collective.

    :param budget: seconds.
    :param bandwidth: of the memory, in bytes per second; gives the least possible time of the case.
    """
    work = works.make(library, case, world)
    if work is None:
        return None
    taken = sample(work, world, budget)
    row = {"library": library.label, **figures.columns(case, world.size, taken, bandwidth)}
    row["algorithm"], row["shared"] = library.algorithm() or "", work.shared
    if case.kind == "update":
        row["held"] = work.held()
    row["peak_memory"] = max(world.allgather(machine.peak_memory()))
    return row
