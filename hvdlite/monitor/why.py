"""The command ``hvdlite why``: tells how steps of a job spend time, from recorders or timelines."""

import sys
import time
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

from hvdlite import cli
from hvdlite.machine import nodes
from hvdlite.monitor import live, memory, traces, verdict, watching
from hvdlite.monitor.memory import Op, Snapshot

PROGRAM = "hvdlite why"
EPILOG = """\
hvdlite why                      the only job on this host
hvdlite why -H node1,node2 4711  the job of process 4711, with ranks on other hosts
hvdlite why trace-*.json         a job that has ended, from the files of HVDLITE_TIMELINE
"""
_ENOUGH = 10  # read at least so many times, and until each rank has so many steps
_EVERY = 0.2  # seconds between two readings
_STANDS = 5.0  # if a rank waits so many seconds, the output says that the job stands still


def main(arguments: Optional[Sequence[str]] = None) -> int:
    new = cli.parser(PROGRAM, "Tell why a job's steps lose time, and what to do.", EPILOG)
    new.add_argument(
        "job", nargs="*", help="a rank's process id, the start of a job's number, or timelines"
    )
    watching.add_hosts(new)
    new.add_argument(
        "--seconds",
        type=cli.seconds,
        default=10.0,
        help="watch for at most this time (default: 10)",
    )
    options = new.parse_args(arguments)
    try:
        if any(Path(name).is_file() for name in options.job):
            print(of_trace(traces.read(options.job)))
            return 0
        if len(options.job) > 1:
            new.error("expected one job, or files of timelines: none of these is a file")
        job = watching.job_of(next(iter(options.job), None))
        with watching.sources(job, options.hosts, _EVERY) as sources:
            print(of_snapshots(*_poll(sources, options.seconds)))
    except (memory.NoRecorder, traces.BadTrace) as why:
        return cli.fail(PROGRAM, str(why))
    return 0


def of_trace(trace: traces.Trace) -> str:
    """Return the text about a job that has ended, from its timelines."""
    ranks = verdict.rank_steps(trace.tensors, trace.notes, trace.hosts)
    return verdict.text(
        trace.name.rpartition(" on ")[0] or "this job", ranks, verdict.findings(ranks)
    )


def of_snapshots(ranks: Sequence[Snapshot], awaited: Optional[Dict[int, int]] = None) -> str:
    """Return the text about a running job, from snapshots of its ranks' recorders."""
    if not ranks:
        return "no rank's flight recorder could be read"
    job = f"job {ranks[0].head['job']}"
    stands = _standstill(ranks)
    found = rank_steps_of(ranks)
    apart = [
        nodes.report(one.rank, one.head["host"], one.misplaced) for one in ranks if one.misplaced
    ]
    judged = verdict.text(job, found, verdict.findings(found, awaited))
    return "\n".join([*stands, judged, *apart])


def rank_steps_of(ranks: Sequence[Snapshot]) -> List[verdict.RankSteps]:
    """Return the RankSteps of each rank that has complete steps in its recorder."""
    tensors = [tensor for one in ranks for tensor in live.tensors_of(one) if tensor.ended > 0]
    notes = [note for one in ranks for note in live.notes_of(one)]
    return verdict.rank_steps(tensors, notes, {one.rank: one.head["host"] for one in ranks})


def _standstill(ranks: Sequence[Snapshot]) -> List[str]:
    waits = [live.wait_of(one, ranks) for one in ranks if one.state == "runs"]
    longest = max((wait for wait in waits if wait), key=lambda wait: wait.seconds, default=None)
    if longest is None or longest.seconds < _STANDS:
        return []
    whom = live.ranks_text(longest.ranks) if longest.ranks else "others"
    what = f" ({memory.title(longest.op)})" if longest.op else ""
    return [f"the job stands still: it has waited for {whom} for {longest.seconds:.0f} s{what}"]


def _poll(sources, seconds: float) -> Tuple[List[Snapshot], Dict[int, int]]:
    """Read until there are enough steps; return snapshots, and how often each rank was awaited."""
    ops: Dict[int, Dict[int, Op]] = {}
    awaited: Dict[int, int] = {}
    polls = 0
    end = time.monotonic() + seconds
    while True:
        ranks = watching.all_anew(sources)
        for one in ranks:
            ops.setdefault(one.rank, {}).update((op["number"], op) for op in one.ops)
            whom = one.head["waits_for"] - 1
            if whom >= 0:
                awaited[whom] = awaited.get(whom, 0) + 1
        ranks = [one._replace(ops=[op for _, op in sorted(ops[one.rank].items())]) for one in ranks]
        found = rank_steps_of(ranks)
        enough = len(found) == len(ranks) > 0 and min(len(w.steps) for w in found) >= _ENOUGH
        polls += 1
        if (enough and polls >= _ENOUGH) or time.monotonic() > end:
            return ranks, awaited
        time.sleep(_EVERY)


if __name__ == "__main__":
    sys.exit(main())
