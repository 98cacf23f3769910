"""Tables in C, Python, tests and docs have the same rows, so that an addition misses no table."""

import argparse
import importlib.util
import re
import shlex
import subprocess
import sys
from unittest import mock

import pytest

import hvdlite as hvd
import hvdlite.numpy
from hvdlite import cli
from hvdlite.core import reduce_ops
from hvdlite.core.collectives import DTYPE_CODES, DTYPES
from hvdlite.core.lazy_names import NEUTRAL
from hvdlite.core.native import ffi, lib
from hvdlite.launch.backends import BACKENDS
from hvdlite.launch.options import OPTIONS, parser
from hvdlite.monitor import why
from tests.jobs import ROOT

PACKAGE = ROOT / "hvdlite"
DOCS = {page.name: page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")}


def values(enum: str) -> dict:
    """Return name -> value of a C enum, without the name that counts the values."""
    found = ffi.typeof(enum).relements
    return {name: value for name, value in found.items() if value < found[f"{enum.upper()}S"]}


def test_every_reduce_op_has_a_name_in_python_and_in_the_docs():
    for c_name, value in values("hvd_op").items():
        name = reduce_ops.NAMES[value]  # the name that error texts use
        assert c_name == f"HVD_{name.upper()}"
        assert getattr(hvd, name, None) == value and name in NEUTRAL, name
        assert f"`{name}`" in DOCS["horovod.md"], name


# Functions that take only some dtypes, such as codecs and casts, may name these dtypes.
SPECIAL = {
    f"HVD_{dtype}"
    for dtype in ("FLOAT16", "BFLOAT16", "FLOAT32", "FLOAT64", "BOOL", "UINT8", "INT8")
}
ENDS = "c", "h", "cpp", "py"


def test_no_file_but_types_h_has_a_table_of_dtypes():
    texts = [f.read_text(encoding="utf-8") for end in ENDS for f in PACKAGE.rglob(f"*.{end}")]
    for name in values("hvd_dtype"):
        found = any(re.search(rf"\b{name}\b", text) for text in texts)
        assert name in SPECIAL or not found, name


def test_every_dtype_has_a_numpy_dtype():
    # NumPy has bfloat16 only if ml_dtypes is installed
    ours = {*DTYPES.values(), lib.HVD_BFLOAT16}
    assert ours == set(values("hvd_dtype").values())
    assert DTYPE_CODES.items() >= {(str(dtype), code) for dtype, code in DTYPES.items()}
    for name in values("hvd_dtype"):
        assert name[len("HVD_") :].lower() in hvdlite.numpy.__doc__, name


def test_every_kind_of_collective_has_a_python_function():
    for name in values("hvd_kind"):
        assert callable(getattr(hvdlite.numpy, name[len("HVD_") :].lower())), name


# Undocumented variables that the launcher, its agents and the ranks pass to each other.
INTERNAL = {
    "HVDLITE_AGENT_RANK", "HVDLITE_AS_HOROVOD", "HVDLITE_ELASTIC_ADDRESS",
    "HVDLITE_JOB", "HVDLITE_LAUNCHER", "HVDLITE_REPLACEMENT", "HVDLITE_NEWS",
    "HVDLITE_MEMBER", "HVDLITE_TASK", "HVDLITE_WATCHED", "HVDLITE_WATCHED_SPACE",
}  # fmt: skip


OPTIONS_H = (PACKAGE / "csrc/base/options.h").read_text()
LIMITS = dict(re.findall(r"^    ([A-Z_]+) = ([^,/]+)", OPTIONS_H, re.M))
ENGINE = {  # the engine's options in C: variable -> default
    f"HVDLITE_{name}": LIMITS.get(default, default)
    for name, default in re.findall(r" ROW\(\w+, \w+, ([A-Z_]+), ([^,]+),", OPTIONS_H)
}


def test_environment_variables_and_the_rows_in_the_docs_match():
    read = set(ENGINE)
    for file in PACKAGE.rglob("*.[cp]*"):
        if file.suffix == ".c":
            of_c = re.findall(r'env_\w+\("([A-Z_]+)"', file.read_text())
            read.update(f"HVDLITE_{name}" for name in of_c)
        elif file.suffix == ".py":
            read.update(re.findall(r"HVDLITE_[A-Z_]*[A-Z]", file.read_text()))
    rows = set(re.findall(r"^\| `(HVDLITE_\w+)`", DOCS["environment.md"], re.M))
    told = set(re.findall(r"HVDLITE_[A-Z_]*[A-Z]", " ".join(DOCS.values())))
    assert len(rows) > 20
    assert rows <= read, "rows of docs/environment.md that nothing reads"
    assert read - INTERNAL <= told, "variables that no page of docs/ has"
    assert not INTERNAL & rows
    assert read >= INTERNAL, "internal variables that are gone"


# variables whose default hvdlite measures, and what the docs say instead of the default
MEASURED = {
    "HVDLITE_SEGMENTS_IN_FLIGHT": "16 to 64", "HVDLITE_THREADS": "1 to 8",
    "HVDLITE_TEAM_RANKS": "measured", "HVDLITE_THREADS_BYTES": "measured",
}  # fmt: skip


def test_the_defaults_in_the_docs_are_those_of_the_engine():
    told = dict(re.findall(r"^\| `(HVDLITE_\w+)` \| ([^|]*) \|", DOCS["environment.md"], re.M))
    words = {"true": 1, "false": 0, "SIZE_MAX": "measured"}
    assert len(ENGINE) >= 15
    for name, default in ENGINE.items():
        value = words[default] if default in words else eval(default)
        assert told[name] == MEASURED.get(name, str(value)), name


def test_variables_that_launcher_options_set_are_in_the_docs():
    rows = set(re.findall(r"^\| `(HVDLITE_\w+)`", DOCS["environment.md"], re.M))
    set_by_options = {row.variable for group in OPTIONS.values() for row in group} - {None}
    assert set_by_options - INTERNAL - {"DMLC_PS_VAN_TYPE"} <= rows


def test_every_option_of_the_launcher_is_in_the_docs():
    words = " ".join(DOCS.values())
    told = set(re.findall(r"(?<![\w-])-[\w-]*\w", words))
    for action in parser(list(BACKENDS))._actions:
        if action.dest not in ("help", "version") and action.help != argparse.SUPPRESS:
            known = action.option_strings or told  # the argument `command` has no option strings
            assert told.intersection(known), known


PROGRAMS = (
    "hvdliterun|hvdlite|hvdlite-bench|hvdlite-report|hvdlite-top|python|mpirun|torchrun|srun|make"
    "|pip|conda|docker|sbatch|kubectl|export|ssh"
)
SHELL = re.compile(rf"^(?:\$ )?((?:[A-Z_]+=\S+ )*(?:{PROGRAMS})(?: .*)?)$", re.M)
MAKEFILES = (ROOT / "Makefile", ROOT / "benchmarks" / "benchmarks.mk")
TARGETS = {name for file in MAKEFILES for name in re.findall(r"^([\w-]+):", file.read_text(), re.M)}
EXTRAS = set(re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.M))


def shell_lines() -> list:
    """Return (page, words) of each command in the pages, without variables before the command."""
    pages = {
        **DOCS,
        **{name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")},
    }
    found = []
    for page, text in pages.items():
        text = re.sub(r"^```(?:python|\{).*?^```", "", text.replace("\\\n", " "), flags=re.M | re.S)
        code = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
        code += re.findall(r"^    (.*)$", text, re.M)
        for line in SHELL.findall("\n".join(code)):
            words = shlex.split(line, comments=True)
            found.append((page, words[next(i for i, w in enumerate(words) if "=" not in w) :]))
    return found


def takes(program: str, words: list) -> None:
    """Raise an error unless the program of hvdlite takes the options; do not start a job."""
    if program == "hvdlite":
        program, *words = words
        assert program in cli.COMMANDS
    if program in ("run", "check", "hvdliterun"):
        parser(list(BACKENDS)).parse_args(words)
    else:
        done = subprocess.run(
            [sys.executable, "-m", "hvdlite", program.replace("hvdlite-", ""), "--help"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert all(word in done.stdout for word in words if word.startswith("-")), words


def exists(program: str, words: list) -> None:
    """Raise an error if a command names a make target, an extra or a file that does not exist."""
    if program == "make":
        assert TARGETS.issuperset(word for word in words if "=" not in word), words
    if program in ("pip", "conda"):
        assert EXTRAS.issuperset(
            re.findall(r"\w+", "".join(re.findall(r"\[([\w,]+)\]", str(words))))
        )
    for word in words:
        if re.match(r"(examples|tests|tools|docs)/", word):
            assert (ROOT / word).exists(), word
        if word.startswith("benchmarks."):
            assert importlib.util.find_spec(word), word


def test_options_targets_and_files_of_commands_in_the_docs_exist(capsys):
    """Commands may need other hosts, Slurm or hours, so the test checks only their words."""
    lines = shell_lines()
    assert len(lines) > 60
    for page, (program, *words) in lines:
        try:
            if "..." not in words:
                (takes if program.startswith("hvdlite") else exists)(program, words)
        except (SystemExit, AssertionError) as why:
            told = capsys.readouterr().err
            raise AssertionError(f"{page}: {program} {words}: {why} {told}") from None


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_subcommand_prints_its_usage(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    assert re.match(r"usage: hvdlite(run|-\w+| why| completion) ", capsys.readouterr().out)


@pytest.mark.parametrize(
    "word, hint", [("nonsense", "choose from run, check, bench, top, why"), ("rnu", "mean run?")]
)
def test_the_error_of_an_unknown_command_lists_the_known_commands(word, hint, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([word])
    assert end.value.code == 2
    assert hint in capsys.readouterr().err


def test_ctrl_c_in_a_watching_command_prints_no_traceback(monkeypatch):
    monkeypatch.setattr(why, "main", mock.Mock(side_effect=KeyboardInterrupt))
    assert cli.main(["why"]) == 130


def test_the_shell_completes_commands_and_options(capsys):
    assert cli.main(["completion"]) == 0
    line = "COMP_WORDS=(hvdlite run --summ) COMP_CWORD=2; _hvdlite hvdlite; echo ${COMPREPLY[@]}"
    first = "COMP_WORDS=(hvdlite to) COMP_CWORD=1; _hvdlite hvdlite; echo ${COMPREPLY[@]}"
    code = "\n".join([capsys.readouterr().out, line, first])
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["--summary", "top"], done.stderr


def test_python_m_hvdlite_prints_its_version():
    done = subprocess.run(
        [sys.executable, "-m", "hvdlite", "--version"], capture_output=True, text=True, timeout=120
    )
    assert (done.stdout, done.stderr) == (f"{hvd.__version__}\n", "")


def test_options_after_a_subcommand_belong_to_the_subcommand(capsys):
    assert cli.main(["run", "--version"]) == 0
    assert capsys.readouterr().out.strip() == hvd.__version__
    assert cli.main(["report", "none.json"]) == 2
    assert "none.json can't be read" in capsys.readouterr().err


@pytest.mark.parametrize("words", ["report x --titl y", "top --onc", "bench --idl 0", "run --chec"])
def test_an_abbreviated_option_is_refused_with_the_full_name(words, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(words.split())
    assert ended.value.code == 2
    assert re.search(r"unknown option (--\w+): did you mean \1\w+[?]", capsys.readouterr().err)
