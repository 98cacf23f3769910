"""Writes hvdlite/jax/mpi_abi.h: the names that MPItrampoline looks up in an MPI's library.

python tools/jax_abi.py MPITRAMPOLINE     a checkout of github.com/eschnett/MPItrampoline, v5.3.1,
                                          the version that jaxlib contains
"""

import re
import runpy
import sys
import textwrap
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "hvdlite" / "jax"
HEAD = """\
/* The names of MPItrampoline's ABI 2.10 that library.c does not define, as X-macro lists.
 *
 * Written by tools/jax_abi.py from the folder mpiabi of MPItrampoline v5.3.1 (MIT license). */
/* clang-format off */
"""


def main(checkout: str) -> None:
    code = (FOLDER / "library.c").read_text()
    dtypes = (FOLDER.parent / "csrc/base/types.h").read_text().partition("#define DTYPES(")[2]
    rows = re.findall(r'\bROW\(\w+, "\w+", \w+, [-\w]+, (\w+)', dtypes)
    rows += re.findall(r"\b(?:TYPE|CONSTANT)\((\w+), [^)]*\)", code)
    here = {f"MPIABI_{name}" for name in rows}
    here |= set(re.findall(r"\b(MPIABI_\w+)(?:\(| = &)", code))
    text = HEAD
    for kind in "constants", "functions":
        listed = [row[1] for row in runpy.run_path(f"{checkout}/mpiabi/mpi_{kind}.py")[kind]]
        for prefix in "MPI", "MPIX":
            names = [name[len(prefix) + 1 :] for name in listed if name.startswith(prefix + "_")]
            rows = [f"ROW({n})" for n in dict.fromkeys(names) if f"{prefix}ABI_{n}" not in here]
            line = " ".join([f"#define {prefix}_{kind.upper()}(ROW)", *rows])
            lines = textwrap.wrap(line, 98, subsequent_indent="    ")
            text += " \\\n".join(lines) + "\n" if rows else ""
    (FOLDER / "mpi_abi.h").write_text(text)


main(sys.argv[1])
