"""Libraries compiled for a framework: their folder, and which rank compiles them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.machine import probe
from hvdlite.training import compiled

RANKS = 16
BUILDS = """
import sys
from pathlib import Path
from hvdlite.training import compiled
source, compiler = Path(sys.argv[1]), ["sh", sys.argv[2]]
print(compiled.build("it", "lib", [], [source], lambda: compiler))
"""


@pytest.fixture
def build(tmp_path):
    """Return a function that starts a process to build a library; the compiler logs its calls."""
    (tmp_path / "source").write_text("x")
    compiler = tmp_path / "compiler"
    compiler.write_text(f'echo call >>{tmp_path}/calls\nsleep 0.5\n: >"$2"\n')
    arguments = [str(tmp_path / "source"), str(compiler)]

    def start(**env):
        env = {**os.environ, **env}
        env.pop(probe.CACHE, None)
        env.pop("XDG_CACHE_HOME", None)
        line = [sys.executable, "-c", BUILDS, *arguments]
        return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, text=True)

    return start


def test_without_home_folders_one_of_16_ranks_compiles_to_the_temporary_folder(build, tmp_path):
    home = tmp_path / "home"
    home.write_text("a file, so no folder can be made here")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    ranks = [build(HOME=str(home), TMPDIR=str(temporary)) for _ in range(RANKS)]
    (made,) = {Path(rank.communicate(timeout=200)[0].strip()) for rank in ranks}
    assert made.exists() and made.parent.parent == temporary
    assert made.parent.stat().st_mode & 0o077 == 0
    assert (tmp_path / "calls").read_text() == "call\n"


def test_a_library_found_in_the_wheel_or_cache_is_not_compiled(monkeypatch, tmp_path):
    (tmp_path / "source").write_text("x")
    folders = [tmp_path / name for name in ("shipped", "home", "temporary")]
    monkeypatch.setattr(compiled, "shipped_folder", lambda: str(folders[0]))
    monkeypatch.setattr(compiled, "cache_folders", lambda: [str(f) for f in folders[1:]])

    def build():
        return compiled.build("it", "lib", [], [tmp_path / "source"], lambda: ["no-such-compiler"])

    with pytest.raises(RuntimeError, match="no compiler"):
        build()
    name = next(folders[1].glob("*.lock")).with_suffix(".so").name
    for folder in reversed(folders):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
        assert build() == folder / name
