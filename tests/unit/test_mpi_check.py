"""The MPI that mpi4py has loaded must be the MPI for which the C library was built."""

import pytest
from mpi4py import MPI

from hvdlite.bootstrap.mpi.loading import by_mpi, mismatch, not_built
from hvdlite.core.native import ffi, lib, new_error

OPEN_MPI_5 = "Open MPI v5.0.11, package: Open MPI root@host Distribution, ident: 5.0.11"
OPEN_MPI_4 = "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4"
MPICH = "MPICH Version:      4.3.2\nMPICH Release date: Wed Jul 30 2025\n"


@pytest.mark.parametrize(
    "built_for, loaded, theirs",
    [
        ("Open MPI 5.0.11", "Open MPI v5.0.11", OPEN_MPI_5),
        # both versions have the same ABI, libmpi.so.40
        ("Open MPI 5.0.11", "Open MPI v4.1.4", OPEN_MPI_4),
        ("MPICH 4.0.2", "MPICH Version:      4.3.2", MPICH),
        ("MPICH 4.3.2", "Intel(R) MPI Library 2021.9", "Intel(R) MPI Library 2021.9 for Linux"),
    ],
)
def test_an_mpi_with_the_same_abi_is_accepted(built_for, loaded, theirs):
    assert mismatch(built_for, loaded, theirs) is None


@pytest.mark.parametrize(
    "built_for, loaded, theirs, named",
    [
        ("MPICH 4.3.2", "MPICH Version: 4.3.2", OPEN_MPI_5, ("MPICH 4.3.2", "Open MPI 5.0.11")),
        ("Open MPI 5.0.11", "Open MPI v5.0.11", MPICH, ("Open MPI 5.0.11", "MPICH 4.3.2")),
        # mpi4py is linked to MPICH, but an Open MPI in the process answers its calls
        ("MPICH 4.3.2", "Open MPI v4.1.4", OPEN_MPI_4, ("MPICH 4.3.2", "Open MPI 4.1.4")),
        ("Open MPI 5.0.11", "Open MPI v5.0.11", OPEN_MPI_4, ("5.0.11", "4.1.4")),
        ("MPI 5.0", "MPICH Version:      5.0.2", "MPICH Version:      5.0.2\n", ("MPI 5.0",)),
    ],
)
def test_an_mpi_other_than_the_library_s_is_refused_in_one_sentence(
    built_for, loaded, theirs, named
):
    text = mismatch(built_for, loaded, theirs)
    assert all(name in text for name in named)
    assert "MPICC" in text
    assert "MPI4PY_LIBMPI" in text
    assert "\n" not in text
    assert text.count(". ") == 0


def test_the_error_names_the_mpi_for_which_hvdlite_was_built(tmp_path):
    assert not_built(OPEN_MPI_5, tmp_path).startswith("hvdlite was built without MPI, but mpi4py ")
    (tmp_path / "_hvdlite_mpich.abi3.so").touch()
    text = not_built(OPEN_MPI_5, tmp_path)
    assert text.startswith("hvdlite was built for MPICH, but mpi4py has loaded Open MPI 5.0.11: ")
    assert "MPICC" in text


def test_an_error_of_mpi_shows_no_c_source():
    error = new_error()
    assert lib.hvd_init(by_mpi(MPI.COMM_NULL), error) == lib.HVD_TRANSPORT
    text = ffi.string(error.text).decode()
    assert text.startswith("MPI_Comm_dup failed: ")
    assert "(" not in text.partition(":")[0] and "m->" not in text
