"""Runs, on every rank, the Python code of a page, each piece after a copy of the page's first."""

import os
import re
import sys
from pathlib import Path

import hvdlite as hvd

# isort: split
from jobs import report

page, folder = Path(sys.argv[1]).resolve(), sys.argv[2]
text = page.read_text()
has_bfloat16 = re.search(r"\b(avx512_bf16|amx_bf16)\b", Path("/proc/cpuinfo").read_text())
first, *pieces = re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)
os.chdir(folder)


def run(piece, scope: dict) -> None:
    """A traceback gives the line of the page."""
    lines = "\n" * text.count("\n", 0, piece.start(1))
    exec(compile(lines + piece[1], str(page), "exec"), scope)


ran = 0
for piece in pieces:
    if has_bfloat16 or '"bfloat16"' not in piece[1]:
        scope = {"__name__": "snippet"}
        run(first, scope)
        run(piece, scope)
    ran += 1
report(hvd.rank(), ran=ran)
