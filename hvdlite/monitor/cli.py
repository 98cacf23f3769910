"""The program hvdlite-report."""

import argparse
import importlib.util
import json
import sys
from typing import Optional, Sequence

from hvdlite import cli
from hvdlite.machine import files
from hvdlite.monitor import traces, why
from hvdlite.monitor.page import page

PROGRAM = "hvdlite-report"
EPILOG = """\
HVDLITE_TIMELINE='trace-{rank}.json' mpirun -n 4 python train.py
hvdlite-report trace-*.json        report.html, and trace.json for ui.perfetto.dev
"""


def main(arguments: Optional[Sequence[str]] = None) -> int:
    options = _parser().parse_args(arguments)
    if not importlib.util.find_spec("matplotlib"):
        return cli.fail(PROGRAM, "hvdlite report needs matplotlib: pip install matplotlib")
    try:
        trace = traces.read(options.traces)
        with files.writing(options.trace), files.open_named(options.trace) as out:
            json.dump(trace.events, out)
        with files.writing(options.output), files.open_named(options.output) as out:
            out.write(page(trace, options.title or trace.name))
    except (traces.BadTrace, files.NotWritten) as error:
        return cli.fail(PROGRAM, str(error))
    print(why.of_trace(trace))
    print(f"{options.output}, and {options.trace} for https://ui.perfetto.dev")
    return 0


def _parser() -> argparse.ArgumentParser:
    what = "Merge the timelines of all ranks into one trace, and draw a page about them."
    new = cli.parser(PROGRAM, what, EPILOG)
    new.add_argument("traces", nargs="+", metavar="FILE", help="the timeline of each rank")
    new.add_argument("-o", "--output", default="report.html", help="default: report.html")
    new.add_argument("--trace", default="trace.json", help="default: trace.json")
    new.add_argument("--title", help="the page's title (default: job, hosts and date)")
    return new


if __name__ == "__main__":
    sys.exit(main())
