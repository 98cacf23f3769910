"""Reads constants and tables of the C headers. Loading the C library for them would take 20 ms."""

from __future__ import annotations

import os


def text_of(header: str) -> str:
    """Return the text of a header of csrc/."""
    package = os.path.dirname(os.path.dirname(__file__))
    with open(os.path.join(package, "csrc", header), encoding="utf-8") as file:
        return file.read()


def rows(text: str, table: str) -> list[tuple[str, str]]:
    """Return the first two columns of a table of macros: a name in C, and a name for users."""
    body = text.partition(f"#define {table}(ROW)")[2].partition("\n\n")[0]
    return [(row.partition(",")[0], row.split('"')[1]) for row in body.split(" ROW(")[1:]]


def constant(text: str, name: str) -> str:
    """Return the value of an enum's constant, as C writes it, for example 1 or '?'."""
    return text.partition(f" {name} = ")[2].partition(",")[0]
