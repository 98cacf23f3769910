"""Code that the benchmarks share: systems that take turns, rounds that are stored in a file, ranks
on emulated hosts, and tables that are written between the marks of a page."""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
UNLIMITED = "unlimited"  # for links whose rate is not limited
KILL_AFTER = 5  # seconds between SIGTERM and SIGKILL for a command that takes too long
PAYLOAD = 0.956  # share of data in a frame: 1,448 of 1,514 bytes, with TCP's time stamps


# ---- options, tables, pages ----


def parser_of(text: str, rounds: Optional[int] = None, rate: Optional[str] = None):
    """Return a parser with the program's help text, and with --page.

    :param rounds: the default of --rounds; None: no such option.
    :param rate: the default of --rate; None: no such option.
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--page", type=Path, help="write the table into this page, between its two marks")
    if rounds is not None:
        add("--rounds", type=int, default=rounds, help="(%(default)s) 0: show stored results")
    if rate is not None:
        known = f"rate of each link in tc's notation, or {UNLIMITED} (%(default)s)"
        add("--rate", type=_checked, default=rate, help=known)
    return parser


def bits_a_second(text: str) -> float:
    """Return the rate of a link such as 25gbit.

    :raises argparse.ArgumentTypeError: the text is not a rate.
    """
    match = re.fullmatch(r"([\d.]+)(mbit|gbit)", text)
    if not match:
        expected = "a number and mbit or gbit, such as 25gbit"
        raise argparse.ArgumentTypeError(f"rate {text}: expected {expected}")
    return float(match[1]) * {"mbit": 1e6, "gbit": 1e9}[match[2]]


def bytes_a_second(rate: str) -> Optional[float]:
    """Return a link's bytes of data per second, without headers; None: the link is unlimited."""
    return None if rate == UNLIMITED else bits_a_second(rate) / 8 * PAYLOAD


def _checked(rate: str) -> str:
    bytes_a_second(rate)
    return rate


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a table in Markdown; the first ``texts`` columns are text, the others numbers."""
    head, *rows = (f"| {' | '.join(line)} |" for line in (header, *lines))
    rule = "|" + "---|" * texts + "--:|" * (len(header) - texts)
    return "\n".join([head, rule, *rows])


def of_rounds(values: Sequence[float], text: Callable[[float], str] = "{:.2f}".format) -> str:
    """Return the median of the rounds' values, then their minimum and maximum in brackets.

    :return: a dash if there is no value; without brackets if there is only one.
    """
    if not values:
        return "–"
    least, median, most = map(text, (min(values), statistics.median(values), max(values)))
    return f"{median} [{least}, {most}]" if len(values) > 1 else median


def show(text: str, page: Optional[Path], mark: str = "table") -> None:
    """Print the table, and write it between the marks of the page that --page names.

    :raises ValueError: the page does not have the two marks.
    """
    print(text)
    if page:
        put(page, {mark: text})


def put(page: Path, texts: Dict[str, str]) -> None:
    """Replace, for each name, the text between ``<!-- name -->`` and ``<!-- end -->`` of a page.

    :raises ValueError: as :func:`show`.
    """
    whole = page.read_text()
    for name, text in texts.items():
        parts = re.split(rf"(<!-- {name} -->)(\n?).*?(<!-- end -->)", whole, flags=re.S)
        if len(parts) != 5:
            count = len(parts) // 4
            raise ValueError(f"{page}: expected <!-- {name} --> and <!-- end --> once, got {count}")
        before, begin, line, end, after = parts
        whole = before + begin + line + text.rstrip("\n") + line + end + after
    page.write_text(whole)


# ---- systems that are measured alternately, and the rounds of measurements ----


def in_turn(contestants: Sequence, number: int) -> list:
    """Return the contestants in the order of a round; every other round reverses the order."""
    return list(contestants[:: -1 if number % 2 else 1])


class Kept:
    """The results of a benchmark in build/NAME.json. Each run adds rounds to the file."""

    def __init__(self, name: str) -> None:
        self.file = BUILD / f"{name}.json"
        self.found: Dict[str, Any] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def save(self) -> None:
        self.file.parent.mkdir(exist_ok=True)
        self.file.write_text(json.dumps(self.found))

    def add(
        self, works: Sequence[str], contestants: Sequence, rounds: int,
        run: Callable[[str, Any], Dict[str, Any]],
    ) -> Dict[str, Any]:  # fmt: skip
        """Measure each work with each contestant in ``rounds`` rounds; return all stored results.

        :param run: takes a work and a contestant; returns results by contestants' names.
        """
        from tqdm import tqdm  # imported here, because bench-cores runs without tqdm

        for _ in tqdm(range(rounds), unit="round", disable=None):
            for work in works:
                runs = self.found.setdefault(work, [])
                found = [run(work, each) for each in in_turn(contestants, len(runs))]
                runs.append({name: value for one in found for name, value in one.items()})
                self.save()
        return self.found


# ---- on emulated hosts ----


def on_hosts(hosts: int, rate: str, ranks: int = 1, burst: str = "32kb") -> List[str]:
    """Return the command that starts hvdlite's ranks on hosts that tests/cluster.py emulates.

    The command needs root, iproute2 and OpenSSH. Options of hvdliterun may follow it.

    :param rate: the rate of the links in tc's notation; UNLIMITED: do not limit it.
    :param ranks: number of ranks on each host.
    :param burst: how much data an idle link takes at full speed.
    """
    names = ",".join(f"h{i}:{ranks}" for i in range(hosts))
    links = [] if rate == UNLIMITED else ["--rate", rate, "--burst", burst]
    cluster = [str(ROOT / "tests" / "cluster.py"), "--hosts", str(hosts), *links, "--"]
    launch = ["-m", "hvdlite.launch", "-n", str(hosts * ranks), "-H", names]
    return [sys.executable, *cluster, sys.executable, *launch]


class Failed(SystemExit):
    """Ranks have failed.

    :ivar found: what ranks have written before.
    """

    def __init__(self, why: str, found: List[Any]) -> None:
        super().__init__(why)
        self.found = found


def results(start: Sequence[str], module: str, arguments: Sequence[str], limit: float = 600,
            python: Path = Path(sys.executable), **environment: str) -> Iterator[Any]:  # fmt: skip
    """Run a module of benchmarks on ranks; yield the results that they write by :func:`write`, in
    the order of ranks.

    :param start: the command that starts ranks, such as :func:`on_hosts` returns.
    :param limit: seconds that the ranks may take.
    :param python: the ranks' Python.
    :raises Failed: the ranks have failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [*start, str(python), "-m", f"benchmarks.{module}", "--rank", folder, *arguments]
        _, why = limited(command, limit, env={**os.environ, **environment})
        found = [json.loads(file.read_text()) for file in sorted(Path(folder).glob("*.json"))]
    if why:
        raise Failed(f"{module} {' '.join(arguments)}: {why}", found)
    yield from found


def limited(command: Sequence[str], limit: float, **options: Any) -> Tuple[Any, Optional[str]]:
    """Run a command in ROOT; return subprocess.run's result, and why the command failed, or None.

    :param limit: after this number of seconds SIGTERM lets a launcher end its ranks; KILL_AFTER
        seconds later SIGKILL follows.
    :param options: of subprocess.run.
    """
    begin = time.monotonic()
    timeout = ["timeout", "--foreground", f"--kill-after={KILL_AFTER}", str(limit)]
    done = subprocess.run([*timeout, *command], cwd=ROOT, **options)
    if not done.returncode:
        return done, None
    is_late = time.monotonic() - begin >= limit
    return done, f"not done after {limit:.0f} s" if is_late else f"exit status {done.returncode}"


def write(folder: str, rank: int, found: Any) -> None:
    """Write a rank's results to a file for :func:`results`; a later call replaces the file."""
    part = Path(folder) / f"{rank:04}.part"
    part.write_text(json.dumps(found))
    part.replace(part.with_suffix(".json"))
