"""The tables of docs/horovod.md for PyTorch, TensorFlow and Keras: are those names there?"""

import json
import re

import pytest
from jobs import ROOT, alone

PAGES = {
    "torch": "pytorch.md",
    "tensorflow": "tensorflow.md",
    "keras": "tensorflow.md",
    "tensorflow.keras": "tensorflow.md",
}
LOOK = """
import importlib, json, sys

def there(module, name):
    module = importlib.import_module(f"hvdlite.{module}")
    return getattr(module, name, None) is not None and name in dir(module)

tables = json.loads(sys.argv[1])
print(json.dumps({m: {n: there(m, n) for n in names} for m, names in tables.items()}))
"""


def tables() -> dict:
    """The names of each module under each of same, differs and missing."""
    page = (ROOT / "docs" / "horovod.md").read_text(encoding="utf-8")
    found: dict = {}
    for line in page.splitlines():
        head = re.match(r"\| `horovod\.([\w.]+)` \| names \|", line)
        row = re.match(r"\| (same|differs|missing) \| (.*) \|", line)
        if head:
            module = found[head[1]] = {}
        elif row:
            module[row[1]] = re.findall(r"`(\w+)`", row[2])
    return found


@pytest.fixture(scope="module")
def there() -> dict:
    names = {module: sum(rows.values(), []) for module, rows in tables().items()}
    return json.loads(alone(LOOK, json.dumps(names), TF_CPP_MIN_LOG_LEVEL="3").splitlines()[-1])


@pytest.mark.parametrize("module", PAGES)
def test_names_are_there_or_are_not_as_the_table_says(module, there):
    rows = tables()[module]
    assert rows.keys() == {"same", "differs", "missing"}
    names = sum(rows.values(), [])
    assert len(names) == len(set(names)) > 30
    wrong = [name for name in names if there[module][name] == (name in rows["missing"])]
    assert not wrong, f"docs/horovod.md on hvdlite.{module}: not so of {', '.join(wrong)}"


@pytest.mark.parametrize("module", PAGES)
def test_a_name_that_differs_has_a_row_that_says_how(module):
    page = (ROOT / "docs" / PAGES[module]).read_text(encoding="utf-8")
    described = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    names = tables()[module]["differs"]
    assert names
    wrong = [name for name in names if not re.search(rf"`({name}|{name}\.\w+)`", described)]
    assert not wrong, f"docs/{PAGES[module]} has no row of {', '.join(wrong)}"
