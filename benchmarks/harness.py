"""What a study shares with the others: contestants by turns, rounds that add up in a file, ranks on
emulated hosts, and a table between the marks of a page."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
UNLIMITED = "unlimited"  # links without a limit of their rate
PAYLOAD = 0.956  # share of data: 1,448 of a frame's 1,514 bytes, with TCP's time stamps


# ---- options, tables, pages ----


def parser_of(text: str, rounds: Optional[int] = None, rate: Optional[str] = None):
    """Return a parser with the program's help text, and with --page.

    :param rounds: the default of --rounds; None: there is none.
    :param rate: the same of --rate.
    """
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--page", type=Path, help="a page to put the table into, between two marks")
    if rounds is not None:
        add("--rounds", type=int, default=rounds, help="(%(default)s) 0: show what is kept")
    if rate is not None:
        known = f"of each link, as tc writes it, or {UNLIMITED} (%(default)s)"
        add("--rate", type=_checked, default=rate, help=known)
    return parser


def bits_a_second(text: str) -> float:
    """Return the rate of a link such as 25gbit.

    :raises argparse.ArgumentTypeError: it is no such rate.
    """
    match = re.fullmatch(r"([\d.]+)(mbit|gbit)", text)
    if not match:
        expected = "a number and mbit or gbit, as 25gbit"
        raise argparse.ArgumentTypeError(f"rate {text}: expected {expected}")
    return float(match[1]) * {"mbit": 1e6, "gbit": 1e9}[match[2]]


def bytes_a_second(rate: str) -> Optional[float]:
    """Return what a link carries of data, without headers; None: nothing limits it."""
    return None if rate == UNLIMITED else bits_a_second(rate) / 8 * PAYLOAD


def _checked(rate: str) -> str:
    bytes_a_second(rate)
    return rate


def markdown(header: Sequence[str], lines: Sequence[Sequence[str]], texts: int = 1) -> str:
    """Return a table whose first columns, so many, are text, the others numbers."""
    head, *rows = (f"| {' | '.join(line)} |" for line in (header, *lines))
    rule = "|" + "---|" * texts + "--:|" * (len(header) - texts)
    return "\n".join([head, rule, *rows])


def show(text: str, page: Optional[Path]) -> None:
    """Print the table, and put it into the page that --page names.

    :raises ValueError: the page does not have its two marks.
    """
    print(text)
    if page:
        put(page, {"table": text})


def put(page: Path, texts: Dict[str, str]) -> None:
    """Replace what stands between ``<!-- name -->`` and ``<!-- end -->`` of a page, by each name.

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


# ---- turns and rounds ----


def in_turn(contestants: Sequence, number: int) -> list:
    """Return the contestants of a round; the next one begins with the last."""
    return list(contestants[:: -1 if number % 2 else 1])


class Kept:
    """What a study has found: build/NAME.json, to which rounds add up until it is deleted."""

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
        """Measure each work with each contestant, in so many rounds; return all that is kept.

        :param run: takes work and contestant; returns what it finds by the contestants' names.
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


def on_hosts(hosts: int, rate: str, ranks: int = 1) -> List[str]:
    """Return what starts ranks of hvdlite's on each of some hosts that tests/cluster.py makes: as
    root, with iproute2 and OpenSSH.

    :param rate: of their links, as tc writes it; UNLIMITED leaves them as they are.
    :param ranks: on each host.
    """
    names = ",".join(f"h{i}:{ranks}" for i in range(hosts))
    links = [] if rate == UNLIMITED else ["--rate", rate]
    cluster = [str(ROOT / "tests" / "cluster.py"), "--hosts", str(hosts), *links, "--"]
    launch = ["-m", "hvdlite.launch", "-n", str(hosts * ranks), "-H", names]
    return [sys.executable, *cluster, sys.executable, *launch]


def results(start: Sequence[str], module: str, arguments: Sequence[str], limit: float = 600,
            python: Path = Path(sys.executable), **environment: str) -> Iterator[Any]:  # fmt: skip
    """Run a module of benchmarks as the ranks; yield what they have written by :func:`write`, the
    lowest rank's first.

    :param start: the command that starts ranks, such as :func:`on_hosts`.
    :param limit: seconds.
    :param python: of the ranks.
    :raises SystemExit: the ranks have failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*start, str(python), "-m", f"benchmarks.{module}", "--rank", folder, *arguments],
            cwd=ROOT, timeout=limit, env={**os.environ, **environment},
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{module} {' '.join(arguments)}: exit status {done.returncode}, no results")
        for file in sorted(Path(folder).iterdir()):
            yield json.loads(file.read_text())


def write(folder: str, rank: int, found: Any) -> None:
    """Leave what a rank has found for :func:`results`."""
    (Path(folder) / f"{rank:04}.json").write_text(json.dumps(found))
