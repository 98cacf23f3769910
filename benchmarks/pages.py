"""Tables in pages under docs/, between two marks, and the programs that write them."""

import argparse
import re
from pathlib import Path
from typing import Optional

_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.S)


def parser_of(text: str) -> argparse.ArgumentParser:
    """Return a parser with the program's help text, and with --page."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", type=Path, help="a page to put the table into, between two marks")
    return parser


def show(text: str, page: Optional[Path]) -> None:
    """Print the table, and put it into the page that --page names."""
    print(text)
    if page:
        put_table(page, text)


def put_table(page: Path, text: str) -> None:
    """Replace what is between the page's marks.

    :raises ValueError: it has none.
    """
    changed, count = _TABLE.subn(lambda marks: marks[1] + text + marks[2], page.read_text())
    if count != 1:
        raise ValueError(f"{page}: expected <!-- table --> and <!-- end --> once, got {count}")
    page.write_text(changed)
