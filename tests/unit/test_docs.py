"""What the pages say of the code is so: the tests that they name are there."""

import re
from functools import lru_cache
from pathlib import Path
from typing import List

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
REFERENCE = re.compile(r"\b((?:[\w/]+/)?test_\w+\.py)::(\w+)")  # the file with or without its folder


@lru_cache(maxsize=None)
def tests_in(file: Path) -> set:
    return set(re.findall(r"^def (test_\w+)\(", file.read_text(), re.M))


def files_named(name: str) -> List[Path]:
    if "/" in name:
        return [file for file in [ROOT / name] if file.is_file()]
    return sorted((ROOT / "tests").rglob(name))


def broken(text: str) -> List[str]:
    """The references of a text that are not to one test each."""
    found = []
    for file, test in sorted(set(REFERENCE.findall(text))):
        files = files_named(file)
        if len(files) != 1 or test not in tests_in(files[0]):
            found.append(f"{file}::{test}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page):
    assert not broken(page.read_text())


def test_the_search_finds_what_is_wrong():
    good = "test_docs.py::test_the_search_finds_what_is_wrong"
    bad = ["test_docs.py::test_nothing", "test_nowhere.py::test_x", "tests/c/test_docs.py::test_x"]
    assert broken(f"`{good}` `tests/unit/{good}`") == []
    assert broken(" ".join(f"`{name}`" for name in bad)) == sorted(bad)
