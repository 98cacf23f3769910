"""Shows rows as tables, and writes them to CSV files."""

import csv
from pathlib import Path
from typing import Dict, List, Sequence

from hvdlite.machine import files

COLUMNS = {
    "library": lambda row: row["library"],
    "work": lambda row: work_text(row),
    "dtype": lambda row: row["dtype"],
    "size": lambda row: size_text(row["bytes"]),
    "arrays": lambda row: str(row["arrays"]),
    "p50 ms": lambda row: milliseconds(row["p50"]),
    "p90": lambda row: milliseconds(row["p90"]),
    "p99": lambda row: milliseconds(row["p99"]),
    "algbw GB/s": lambda row: gigabytes(row.get("algbw")),
    "busbw GB/s": lambda row: gigabytes(row.get("busbw")),
    "of floor": lambda row: percent(row.get("floor_share")),
    "of alone": lambda row: percent(row.get("speed_kept")),
    "CPU s/GB": lambda row: number(row.get("cpu_seconds_per_gb")),
    "peak MB": lambda row: f"{row['peak_memory'] / 1e6:.0f}",
    "algorithm": lambda row: row["algorithm"],
}
_TO_THE_LEFT = ("", "library", "work", "dtype", "algorithm")


def work_text(row: Dict) -> str:
    """Return the row's kind and memory as text.

    The text ends in ", not shared" if the user chose zero-copy, but the ranks shared no memory.
    """
    fallback = ", not shared" if row["memory"] == "zero-copy" and not row["shared"] else ""
    kind = f"update, {row['optimizer']}," if row["kind"] == "update" else row["kind"]
    return f"{kind} {row['memory']}{fallback}"


def size_text(nbytes: int) -> str:
    """Return bytes in the largest unit that leaves no fraction, else in MB.

    >>> size_text(4096), size_text(400_000_000), size_text(102_303_648), size_text(12)
    ('4 KiB', '400 MB', '102 MB', '12 B')
    """
    for unit, size in (("MiB", 2**20), ("MB", 10**6), ("KiB", 2**10), ("kB", 10**3)):
        if nbytes and nbytes % size == 0:
            return f"{nbytes // size} {unit}"
    return f"{nbytes / 1e6:.0f} MB" if nbytes >= 10**6 else f"{nbytes} B"


def milliseconds(seconds: float) -> str:
    return number(1e3 * seconds)


def number(value) -> str:
    """Return the number with three significant digits; from 100 on, as a whole number."""
    if value is None:
        return ""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def gigabytes(rate) -> str:
    return number(None if rate is None else rate / 1e9)


def percent(share) -> str:
    return "" if share is None else f"{100 * share:.0f} %"


def table(rows: Sequence[Dict]) -> str:
    return in_columns([list(COLUMNS), *([f(row) for f in COLUMNS.values()] for row in rows)])


def in_columns(lines: Sequence[Sequence[str]]) -> str:
    """Align lines of cells, the header first, in columns; numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    adjust = [str.ljust if name in _TO_THE_LEFT else str.rjust for name in lines[0]]
    return "\n".join(
        "  ".join(f(cell, width) for f, cell, width in zip(adjust, line, widths)).rstrip()
        for line in lines
    )


def write_csv(path: Path, rows: Sequence[Dict]) -> None:
    """Write a line for each row and a column for each key, in seconds, bytes and bytes/s."""
    keys: List[str] = list(dict.fromkeys(key for row in rows for key in row))
    with files.open_named(path, newline="") as file:
        writer = csv.DictWriter(file, keys)
        writer.writeheader()
        writer.writerows(rows)


def save_text(path: Path, text: str) -> None:
    with files.open_named(path) as file:
        file.write(text)
