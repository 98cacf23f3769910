"""Tables in pages under docs/, between two marks."""

import re
from pathlib import Path

_TABLE = re.compile(r"(<!-- table -->\n).*?(<!-- end -->)", re.S)


def put_table(page: Path, text: str) -> None:
    """Replace what is between the page's marks.

    :raises ValueError: it has none.
    """
    changed, count = _TABLE.subn(lambda marks: marks[1] + text + marks[2], page.read_text())
    if count != 1:
        raise ValueError(f"{page}: expected <!-- table --> and <!-- end --> once, got {count}")
    page.write_text(changed)
