"""hvdlite-top: what each rank of a running job does, live in the terminal."""

import argparse
import contextlib
import importlib.util
import itertools
import sys
import time
from typing import Dict, List, Literal, Optional, Sequence

from hvdlite import cli
from hvdlite.monitor import live, memory, watching
from hvdlite.monitor.memory import Snapshot

PROGRAM = "hvdlite-top"
EPILOG = """\
hvdlite-top                      the only job on this host
hvdlite-top 4711                 the job that process 4711 is a rank of
hvdlite-top -H node1,node2 ab12  and its ranks on other hosts, by ssh (HVDLITE_SSH: its command)
"""
_SHORTEST_WAIT = 0.02  # seconds; ranks are not read at the same moment
COLUMNS = (  # name, is a number
    ("rank", True),
    ("host", False),
    ("pid", True),
    ("steps/s", True),
    ("sent/s", True),
    ("waiting", True),
    ("waits for", False),
    ("operation", False),
)


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the program; return its exit code."""
    options = _parser().parse_args(arguments)
    if not options.json and not importlib.util.find_spec("rich"):
        return cli.fail(PROGRAM, "the library rich draws the table: pip install rich")
    try:
        job = watching.job_of(options.job)
    except memory.NoRecorder as why:
        return cli.fail(PROGRAM, str(why))
    stops = contextlib.suppress(KeyboardInterrupt, BrokenPipeError)
    with stops, watching.sources(job, options.hosts, options.every) as sources:
        (_print_json if options.json else _show)(job, sources, options.every, options.once)
    return 0


def _parser() -> argparse.ArgumentParser:
    new = cli.parser(PROGRAM, "Show what each rank of a running job does.", EPILOG)
    new.add_argument("job", nargs="?", help="a rank's process id, or the begin of a job's number")
    watching.add_hosts(new)
    new.add_argument("--every", type=float, default=1.0, metavar="SECONDS", help="default: 1")
    new.add_argument("--once", action="store_true", help="print one table, and end")
    new.add_argument("--json", action="store_true", help="print what was read, a line each time")
    return new


def _notes(sources) -> List[str]:
    return [f"{source.host}: {source.problem}" for source in sources[1:] if source.problem]


def _ended(ranks: Sequence[Snapshot]) -> bool:
    return bool(ranks) and all(one.state in ("is gone", "is dead") for one in ranks)


def _print_json(_job: str, sources, every: float, once: bool) -> None:
    while True:
        ranks = watching.all_anew(sources)
        print(memory.to_line(ranks), flush=True)
        if once or _ended(ranks):
            return
        time.sleep(every)


def _show(job: str, sources, every: float, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    before: Dict[int, Snapshot] = {one.rank: one for one in watching.all_anew(sources)}
    time.sleep(min(every, 1.0) if once else 0.2)
    if once:
        Console().print(table(job, watching.all_anew(sources), before, _notes(sources)))
        return
    ranks = watching.all_now(sources)
    with Live(table(job, ranks, before), screen=sys.stdout.isatty(), auto_refresh=False) as screen:
        while not _ended(ranks):
            before = {one.rank: one for one in ranks}
            time.sleep(every)
            ranks = watching.all_now(sources)
            screen.update(table(job, ranks, before, _notes(sources)), refresh=True)
    print(f"hvdlite-top: job {job} has ended")


def rows(ranks: Sequence[Snapshot], before: Dict[int, Snapshot]) -> List[List[str]]:
    """Return the cells of the table, a row for each rank."""
    last = live.straggler(ranks)
    found = []
    for one in ranks:
        rates = live.rates(before.get(one.rank), one)
        wait = live.wait_of(one, ranks) if one.state == "runs" else None
        if wait and wait.seconds < _SHORTEST_WAIT:
            wait = None
        whom = ""
        if one.state != "runs":
            whom = one.state
        elif wait:
            who = live.ranks_text(wait.ranks) if wait.ranks else "others"
            whom = f"{who}, {wait.seconds:.2f} s"
        found.append(
            [
                f"{one.rank}{' *' if one.rank == last else ''}",
                one.head["host"],
                str(one.head["pid"]),
                f"{rates.steps:.1f}",
                live.size_text(rates.bytes),
                f"{rates.waiting:.0%}",
                whom,
                _operation(one, wait),
            ]
        )
    return found


def _operation(one: Snapshot, wait: Optional[live.Wait]) -> str:
    op = wait.op if wait else (one.ops[-1] if one.ops else None)
    return f"{op['name']} {op['phase']}" if op else ""


def table(job: str, ranks: Sequence[Snapshot], before: Dict[int, Snapshot], notes=()):
    """Return rich's table of the ranks."""
    from rich.table import Table

    size = ranks[0].head["size"] if ranks else 0
    hosts = {one.head["host"] for one in ranks}
    where = f" on {hosts.pop()}" if len(hosts) == 1 else ""  # then the names have its column
    carrier = f", transport {ranks[0].head['transport']}" if ranks else ""
    title = f"job {job}: {len(ranks)} of {size} ranks{where}{carrier}"
    new = Table(title=title, title_justify="left")
    shown = [name != "host" or not where for name, _ in COLUMNS]
    for name, is_number in itertools.compress(COLUMNS, shown):
        justify: Literal["right", "left"] = "right" if is_number else "left"
        new.add_column(name, justify=justify, no_wrap=name != "operation", overflow="fold")
    for one, row in zip(ranks, rows(ranks, before)):
        late = row[0].endswith("*")
        style = "red" if one.state != "runs" else "yellow" if late else None
        new.add_row(*itertools.compress(row, shown), style=style)
    straggler = live.straggler(ranks)
    caption = [f"* the others wait most for rank {straggler}"] if straggler is not None else []
    new.caption = "\n".join([*caption, *notes]) or None
    return new


if __name__ == "__main__":
    sys.exit(main())
