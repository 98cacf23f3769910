"""No module recognizes errors by their text; retired terms and British spellings do not occur."""

import ast
import contextlib
import functools
import re
import subprocess
from pathlib import Path

import pytest
from jobs import ROOT
from test_architecture import CSRC, HEADERS, MODULES, SOURCES, parsed, text_of, wrong_in

from hvdlite.core.native import kind_of, lib


def words_of(text: str) -> list:
    """Return pairs of adjacent words: "rank \\d+ left the job" has "left the" and "the job"."""
    runs = re.findall(r"[a-z']+(?: [a-z']+)+", re.sub(r"%[-+.\d*]*[a-z]+", "%", text))
    return [pair for run in runs for pair in zip(run.split(" "), run.split(" ")[1:])]


@functools.lru_cache
def error_words() -> set:
    """Return the word pairs in the error texts of the C core."""
    literal = re.compile(r'"((?:\\.|[^"\\\n])*)"')
    found = set()
    for source in SOURCES:
        for call in re.findall(r"\b(?:error_\w+|snprintf)\(.*?;", text_of(source), re.S):
            found.update(words_of("".join(literal.findall(call))))
    return found - {("hvdlite", "error")}  # hvd_keep_failure appends "[hvdlite error HASH]"


LOOKS = {"search", "match", "fullmatch", "compile", "finditer", "findall", "split", "sub"}
LOOKS |= {"startswith", "endswith", "find", "rfind", "index", "rindex", "partition", "rpartition"}
LOOKS |= {"count", "removeprefix", "removesuffix", "fnmatch"}


def searched_for(code: str) -> list:
    """Return the texts that a module searches for or compares with."""
    tree, named = parsed(code), {}
    for node in ast.walk(tree):
        target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
        if isinstance(target, ast.Name):  # a name that is assigned or is a loop variable
            named[target.id] = getattr(node, "iter", None) or getattr(node, "value", None)

    def texts_of(part, depth=3) -> list:
        if isinstance(part, ast.Name) and depth:
            return texts_of(named.get(part.id), depth - 1)
        values = [x.value for x in ast.walk(part) if isinstance(x, ast.Constant)] if part else []
        texts = [x.decode("latin-1") if isinstance(x, bytes) else x for x in values]
        return [x for x in texts if isinstance(x, str)]

    parts = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            parts.append(node.left)
            parts += node.comparators if isinstance(node.ops[0], ast.Eq) else []
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
            parts += [*node.args, *[k.value for k in node.keywords]] if name in LOOKS else []
    return [text for part in parts for text in texts_of(part)]


def texts_of_errors_in(code: str) -> list:
    """Return the texts of errors that a module searches for or compares with."""
    return [t for t in searched_for(code) if error_words().intersection(words_of(t))]


def test_no_module_recognizes_errors_by_their_text():
    """Modules read an error's fields (HvdliteError, failure_of), because texts may change."""
    assert wrong_in(MODULES, lambda module: texts_of_errors_in(text_of(module))) == {}


@pytest.mark.parametrize(
    "code",
    [
        r"A = re.compile(r'rank \d+ (?:left the job|\(process \d+ on host [^ )]+\) is dead)')",
        r"re.search(rf'submitted by .*?, not by ranks? (\d[\d, -]*)', line)",
        "if 'ranks disagree on' in str(error): pass",
        "line.startswith('tensor \\'x\\'') or line.endswith('before submitting it')",
        "NEEDLES = (b'has not answered', b'x')\nany(n in line for n in NEEDLES)",
        "PHRASE = 'left the job'\nif PHRASE in text: pass",
    ],
)
def test_the_check_finds_error_texts_in_every_form_of_search(code):
    assert texts_of_errors_in(code)


def kinds_in(code: str) -> list:
    """Return the literals that are kinds of errors; AMBIGUOUS literals only if used as a kind."""
    tree = list(ast.walk(parsed(code)))
    told = [n for n in tree if isinstance(n, ast.keyword) and n.arg == "kind"]
    told += [n for n in tree if isinstance(n, ast.Compare) and ".kind" in ast.unparse(n)]
    found = [n for part in told for n in ast.walk(part)]
    found += [n for n in tree if getattr(n, "value", None) in KINDS - AMBIGUOUS]
    return [n.value for n in found if isinstance(n, ast.Constant) and n.value in KINDS]


KINDS = {kind_of(code) for code in range(lib.HVD_OK + 1, lib.HVD_INTERNAL + 1)}
AMBIGUOUS = {"failed", "transport"}


def test_no_module_spells_an_error_kind_as_a_literal():
    assert wrong_in(MODULES, lambda module: kinds_in(text_of(module))) == {}


@pytest.mark.parametrize(
    "code",
    [
        "HvdliteError(text, kind='failed')",
        "if error.kind in ('transport',): pass",
        "told.get(error.kind) or {'rank dead': 1}",
        "KINDS = ('stalled', 'x')",
    ],
)
def test_the_check_finds_error_kinds_in_every_form_of_literal(code):
    assert kinds_in(code)


# Present term -> pattern of its old name, which may not occur in identifiers or prose. The
# glossary in docs/design.md has the present terms.
RETIRED = {
    "rerendezvous": "roll ?calls?",
    "replacement": "newcomers?",
    "acceptor": "receptions?",
    "fast path": "express path",
    "store": "bootstrap star",
    "aggregate": "gather tree",
    "agent": "launch daemon",
    "window": "shared buffer",
    "elastic training by sockets": "ulfm",
    "step check": "training turn",
    "bytes sent network": "bytes sent mpi",
}
IN_THE_CORE = {"progress": "wheel", "mutex": "monitor", "fast path": "express"}
IN_THE_CORE |= {"queue": "turn (?:enter|come|pass)", "call of helpers": "(?:begin|next) turn"}


def words_in(file: Path) -> str:
    """Return the text of a file as words: a_name, a-name and aName become "a name"."""
    text = file.read_text(encoding="utf-8")
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()


def test_retired_terms_do_not_occur():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    python = [*MODULES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    files = {file: words_in(file) for file in {*pages, *python, *SOURCES, *HEADERS}}
    del files[Path(__file__)], files[ROOT / "docs" / "design.md"], files[ROOT / "CHANGELOG.md"]
    for terms, where in ((RETIRED, ROOT), (IN_THE_CORE, CSRC)):
        for term, old in terms.items():
            at = [f for f in files if where in f.parents]
            users = [f.name for f in at if re.search(rf"\b{old}\b", files[f])]
            assert not users, f"{old} is called {term}: {users}"


# These modules speak of workers: processes of MXNet's parameter server or of Kubernetes' operator.
WITH_WORKERS = {"ranks.py", "assignment.py", "sitecustomize.py"}
WITH_WORKERS |= {"options.py", "containers.py"}
OPTIONS_AND_ROLE = re.compile(r"\W(?:env[_-]workers?|num[_-]workers)|\"worker\"")


def test_modules_of_the_launcher_say_rank_instead_of_worker():
    """Exceptions are the option --num-workers and MXNet's role "worker"."""
    files = [f for f in (ROOT / "hvdlite" / "launch").rglob("*.py") if f.name not in WITH_WORKERS]
    texts = {file.name: OPTIONS_AND_ROLE.sub("", file.read_text()) for file in files}
    assert [name for name, text in texts.items() if "worker" in text.lower()] == []


# Words of British spelling, which Horovod's, PyTorch's and MXNet's interfaces do not use.
BRITISH = re.compile(
    r"\b\w*(?:capital|character|custom|emphas|general|initial|maxim|minim|normal|optim|organ"
    r"|parallel|priorit|quant|random|recogn|serial|special|synchron|util|vector|visual)"
    r"is(?:e|ing|ation)\w*|\b\w*(?:acknowledgement|analyse[ds]?\b|analysing|artefact|behaviour"
    r"|catalogue|centred|colour|defence|favour|flavour|fulfil\b|honour|judgement|learnt|licence"
    r"|neighbour|whilst|(?:cancel|label|model|signal|travel)l(?:ed\b|ing\b))\w*|\bgrey\w*"
)
NAMES_OF_MPI = re.compile(r"test cancelled|status set cancelled")


def test_words_have_american_spelling():
    files = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    found = {}
    for file in [ROOT / name for name in files if (ROOT / name) != Path(__file__)]:
        with contextlib.suppress(UnicodeDecodeError, OSError):  # an image; a removed file
            words = f"{words_in(file)} {file.stem}"
            found[file.name] = BRITISH.findall(NAMES_OF_MPI.sub("", words))
    assert not {name: words for name, words in found.items() if words}
