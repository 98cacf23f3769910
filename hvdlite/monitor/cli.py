"""The program hvdlite-report."""

import argparse
import json
import sys
from pathlib import Path
from typing import Optional, Sequence

from hvdlite.core import files
from hvdlite.monitor import traces
from hvdlite.monitor.page import page

EPILOG = """\
HVDLITE_TIMELINE='trace-{rank}.json' mpirun -n 4 python train.py
hvdlite-report trace-*.json        report.html, and trace.json for ui.perfetto.dev
"""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    """Run the program; return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return _fail("matplotlib draws the page: pip install matplotlib")
    try:
        trace = traces.read(options.traces)
        with files.writing(options.trace), open(options.trace, "w") as out:
            json.dump(trace.events, out)
        with files.writing(options.output):
            Path(options.output).write_text(page(trace, options.title))
    except (traces.BadTrace, files.NotWritten) as why:
        return _fail(str(why))
    print(f"{options.output}, and {options.trace} for https://ui.perfetto.dev")
    return 0


def _parser() -> argparse.ArgumentParser:
    new = argparse.ArgumentParser(
        prog="hvdlite-report",
        description="Put the timelines of all ranks together: one trace, and one page about it.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("traces", nargs="+", metavar="FILE", help="the timeline of each rank")
    new.add_argument("-o", "--output", default="report.html", help="default: report.html")
    new.add_argument("--trace", default="trace.json", help="default: trace.json")
    new.add_argument("--title", default="hvdlite", help="of the page")
    return new


def _fail(why: str) -> int:
    print(f"hvdlite-report: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
