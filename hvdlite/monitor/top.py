"""hvdlite-top: shows continuously what each rank of a running job does."""

import argparse
import contextlib
import importlib.util
import os
import re
import select
import sys
import time
from typing import Callable, Dict, Iterator, List, Literal, NamedTuple, Optional, Sequence

from hvdlite import cli
from hvdlite.monitor import memory, report, rows, watching
from hvdlite.monitor.memory import Snapshot

PROGRAM = "hvdlite-top"
EPILOG = """\
hvdlite-top                      the only job on this host
hvdlite-top 4711                 the job of the rank with process id 4711
hvdlite-top -H node1,node2 ab12  job ab12, also on other hosts, by ssh (HVDLITE_SSH: the command)

keys: s: sort by the next column; up, down (k, j): select a rank and show its last operations;
Escape: select no rank; q: quit
"""
_FRAME = 8  # number of lines for title, head, borders and caption
_GAP = 2  # number of characters between two columns of the table
UP, DOWN, ESCAPE, INTERRUPT = "\x1b[A", "\x1b[B", "\x1b", "\x03"
NextKey = Callable[[float], str]  # waits this many seconds; returns the pressed key, or ""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _parser().parse_args(arguments)
    if not options.json and not importlib.util.find_spec("rich"):
        return cli.fail(PROGRAM, "hvdlite top needs the Python package 'rich': pip install rich")
    stops = contextlib.suppress(KeyboardInterrupt, BrokenPipeError)
    try:
        job = watching.job_of(options.job)
        with stops, watching.sources(job, options.hosts, options.every) as sources:
            (_print_json if options.json else _show)(job, sources, options.every, options.once)
    except memory.NoRecorder as why:
        return cli.fail(PROGRAM, str(why))
    return 0


def _parser() -> argparse.ArgumentParser:
    new = cli.parser(PROGRAM, "Show what each rank of a running job does.", EPILOG)
    new.add_argument("job", nargs="?", help="a rank's process id, or the start of a job's number")
    watching.add_hosts(new)
    every = "time between two readings (default: 1)"
    new.add_argument("--every", type=cli.seconds, default=1.0, metavar="SECONDS", help=every)
    new.add_argument("--once", action="store_true", help="print one table, and end")
    new.add_argument("--json", action="store_true", help="print each reading as a line of JSON")
    return new


def _notes(sources) -> List[str]:
    return [f"{source.host}: {source.problem}" for source in sources[1:] if source.problem]


def _ended(ranks: Sequence[Snapshot]) -> bool:
    return bool(ranks) and all(one.state == memory.ENDED for one in ranks)


def _print_json(_job: str, sources, every: float, once: bool) -> None:
    while True:
        ranks = watching.all_anew(sources)
        print(memory.to_line(ranks), flush=True)
        if once or _ended(ranks):
            return
        time.sleep(every)


class View(NamedTuple):
    """What the user has chosen by pressing keys."""

    by: str = "rank"  # the column by which the table is sorted
    picked: Optional[int] = None  # the rank whose last operations are shown
    ended: bool = False


def pressed(view: View, key: str, order: Sequence[int]) -> View:
    """Return the new choices after a key was pressed.

    :param order: the ranks in the order of the table.
    """
    if key in ("q", INTERRUPT):
        return view._replace(ended=True)
    if key == "s":
        names = [column.name for column in rows.COLUMNS if column.key]
        return view._replace(by=names[(names.index(view.by) + 1) % len(names)])
    if key == ESCAPE:
        return view._replace(picked=None)
    step = {UP: -1, "k": -1, DOWN: 1, "j": 1}.get(key)
    if not step or not order:
        return view
    at = order.index(view.picked) + step if view.picked in order else 0
    return view._replace(picked=order[min(max(at, 0), len(order) - 1)])


def _show(job: str, sources, every: float, once: bool) -> None:
    from rich.console import Console
    from rich.live import Live

    before: Dict[int, Snapshot] = {one.rank: one for one in watching.all_anew(sources)}
    time.sleep(min(every, 1.0) if once else 0.2)
    console = Console()
    if once:
        console.print(table(job, watching.all_anew(sources), before, console, _notes(sources)))
        return
    view, ranks = View(), watching.all_now(sources)
    with reading_keys() as next_key, Live(
        console=console, screen=sys.stdout.isatty(), auto_refresh=False
    ) as screen:
        while not view.ended and not _ended(ranks):
            shown = table(job, ranks, before, console, _notes(sources), view)
            screen.update(shown, refresh=True)
            for key in _until(time.monotonic() + every, next_key):
                view = pressed(view, key, [row.rank for row in rows.build(ranks, before, view.by)])
                shown = table(job, ranks, before, console, _notes(sources), view)
                screen.update(shown, refresh=True)
                if view.ended:
                    return
            before = {one.rank: one for one in ranks}
            ranks = watching.all_now(sources)
    print(f"hvdlite-top: job {job} has ended")


@contextlib.contextmanager
def reading_keys() -> Iterator[NextKey]:
    """Yield a function that waits for a key. When the block ends, restore the terminal.

    If this process has no terminal, or runs in the background, the function always returns "".
    """
    if not sys.stdin or not sys.stdin.isatty():
        yield _none
        return
    import termios
    import tty

    file = sys.stdin.fileno()
    # The kernel stops a background process that reads from the terminal.
    if os.tcgetpgrp(file) != os.getpgrp():
        yield _none
        return
    before = termios.tcgetattr(file)
    tty.setcbreak(file)
    read: List[str] = []
    try:
        yield lambda seconds: _key(file, read, seconds)
    finally:
        termios.tcsetattr(file, termios.TCSADRAIN, before)


def _none(seconds: float) -> str:
    time.sleep(max(seconds, 0))
    return ""


def _key(file: int, read: List[str], seconds: float) -> str:
    """Return the first key of the input. An arrow key arrives as several characters."""
    if not read and select.select([file], [], [], max(seconds, 0))[0]:
        # An empty read means that the terminal is closed: end as after Ctrl-C.
        text = os.read(file, 64).decode(errors="replace") or INTERRUPT
        read += re.findall("\x1b[[O][A-D]|.", text, re.S)
    return read.pop(0).replace("\x1bO", "\x1b[") if read else ""


def _until(end: float, next_key: NextKey) -> Iterator[str]:
    while True:
        key = next_key(end - time.monotonic())
        if key:
            yield key
        if time.monotonic() >= end:
            return


def table(
    job: str, ranks: Sequence[Snapshot], before: Dict[int, Snapshot], console, notes=(), view=None
):
    """Return an object that rich can print: the table, and the picked rank's last operations."""
    from rich.console import Group
    from rich.text import Text

    view = view or View()
    own = next((one for one in ranks if one.rank == view.picked), None)
    head = f"rank {view.picked}, {time.strftime('%H:%M:%S')}"
    last = [head, *report.operations(own)] if own else []
    room = max(console.height - _FRAME - len(last) - len(notes), 3) if console.is_terminal else None
    own_rows = rows.build(ranks, before, view.by, console.width // 10)
    parts = [_ranks(job, own_rows, console.width, room, notes, view)]
    parts += [Text(line, overflow="ellipsis", no_wrap=True) for line in last]
    return Group(*parts)


def _ranks(job: str, own: Sequence[rows.Row], width: int, room: Optional[int], notes, view: View):
    from rich import box
    from rich.table import Table

    hosts = {row.one.head["host"] for row in own}
    shown = [each for each in rows.COLUMNS if width >= each.from_width]
    shown = [each for each in shown if each.name != "host" or len(hosts) > 1]
    new = Table(
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title=_title(job, own, hosts),
        title_justify="left",
        caption_justify="left",
    )
    heads = [f"{each.name}{'*' * (each.name == view.by != 'rank')}" for each in shown]
    texts = [[head, *map(column.text, own)] for head, column in zip(heads, shown)]
    widths = [max(map(len, column)) for column in texts]
    # the last column, with the operations, gets the rest of the width
    widths[-1] = max(width - sum(widths[:-1]) - _GAP * len(shown), 12)
    for column, cells, cells_width in zip(shown, texts, widths):
        justify: Literal["right", "left"] = "right" if column.number else "left"
        new.add_column(
            cells[0], justify=justify, no_wrap=True, overflow="ellipsis", width=cells_width
        )
    at = next((n for n, row in enumerate(own) if row.rank == view.picked), 0)
    first = max(min(at - (room or 0) // 2, len(own) - (room or 0)), 0) if room else 0
    for row in own[first : first + room if room else None]:
        style = "red" if row.one.state != "runs" else "yellow" if row.late else ""
        style += " reverse" if row.rank == view.picked else ""
        new.add_row(*(column.text(row) for column in shown), style=style or None)
    late = [f"* the others wait most for rank {row.rank}" for row in own if row.late]
    text = f"{room} of {len(own)} ranks are shown: the keys up and down show the others"
    more = [text] if room and len(own) > room else []
    new.caption = "\n".join([*late, *more, *notes]) or None
    return new


def _title(job: str, own: Sequence[rows.Row], hosts) -> str:
    size = own[0].one.head["size"] if own else 0
    # the title names the host; if there are several hosts, a column of the table names them
    where = f" on {next(iter(hosts))}" if len(hosts) == 1 else ""
    carrier = f", transport {own[0].one.head['transport']}" if own else ""
    return f"job {job}: {len(own)} of {size} ranks{where}{carrier}"


if __name__ == "__main__":
    sys.exit(main())
